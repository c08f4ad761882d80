//! The workload of the demo, made from a seed: conversations of several tenants that grow turn by turn below shared
//! system prompts, and now and then one long prompt that nobody repeats.
//!
//! Most turns follow a recent one, so that their prefix is still on the device; others come back after a while, when
//! it is only on the host; some come too late for both.

use hicached_actors::calls::draw;
use hicached_actors::protocol::{FORMAT_VERSION, Key, KeyRoot, Manifest};
use hicached_client::engine::Prompt;
use hicached_client::tokens::{PagePlan, Paging};

/// The requests of a demo.
#[derive(Debug)]
pub struct Workload {
    chance: u64,
    paging: Paging,
    salts: Vec<Key>,
    /// System prompts, by salt.
    systems: Vec<Vec<Vec<u32>>>,
    conversations: Vec<Conversation>,
    /// Conversations in the order of their last turn, the newest last.
    recent: Vec<usize>,
    made: u64,
}

#[derive(Debug)]
struct Conversation {
    tenant: usize,
    tokens: Vec<u32>,
}

/// Tenants and the salt each has: two that share pages, and two that share with nobody.
const TENANTS: [(&str, usize); 4] = [("acme", 0), ("acme-labs", 0), ("birch", 1), ("cedar", 2)];
const SALTS: usize = 3;
const SYSTEM_PROMPTS: usize = 2;
const SYSTEM_TOKENS: (u32, u32) = (500, 1_500);
/// One turn adds what was answered and a question.
const TURN_TOKENS: (u32, u32) = (100, 700);
/// A conversation ends beyond this.
const CONVERSATION_TOKENS_MAX: usize = 3_600;
const CONVERSATIONS: usize = 24;
/// Turns that follow one of this many newest ones, of a thousand.
const RECENT: usize = 4;
const RECENT_PERMILLE: u32 = 600;
/// Long prompts of a thousand.
const LONG_PERMILLE: u32 = 25;
const LONG_TOKENS: (u32, u32) = (6_000, 8_000);
const OUTPUT_TOKENS: (u32, u32) = (8, 72);

impl Workload {
    /// The workload of `seed` for pages as `manifest` says.
    pub fn new(seed: u64, manifest: &Manifest) -> Self {
        let paging = Paging { page_tokens: manifest.page_tokens, lookahead_tokens: manifest.draft_lookahead_tokens };
        let salts = (0..SALTS).map(|salt| root(manifest, &format!("demo {salt}"))).collect();
        let mut made = Self {
            chance: seed,
            paging,
            salts,
            systems: Vec::new(),
            conversations: Vec::new(),
            recent: (0..CONVERSATIONS).collect(),
            made: 0,
        };
        for _ in 0..SALTS {
            let prompts = (0..SYSTEM_PROMPTS).map(|_| made.text(SYSTEM_TOKENS)).collect();
            made.systems.push(prompts);
        }
        for _ in 0..CONVERSATIONS {
            let conversation = made.begin();
            made.conversations.push(conversation);
        }
        made
    }

    /// Pages of the longest prompt with its answer, rounded up.
    pub fn longest_pages(page_tokens: u32) -> u32 {
        (LONG_TOKENS.1 + OUTPUT_TOKENS.1).div_ceil(page_tokens) + 1
    }

    fn begin(&mut self) -> Conversation {
        let tenant = self.below(TENANTS.len() as u32) as usize;
        let system = self.below(SYSTEM_PROMPTS as u32) as usize;
        Conversation { tenant, tokens: self.systems[TENANTS[tenant].1][system].clone() }
    }

    fn turn(&mut self) -> Prompt {
        let newest = self.below(1_000) < RECENT_PERMILLE;
        let among = if newest { RECENT } else { CONVERSATIONS };
        let back = self.below(among as u32) as usize;
        let which = self.recent.remove(CONVERSATIONS - 1 - back);
        self.recent.push(which);
        if self.conversations[which].tokens.len() > CONVERSATION_TOKENS_MAX {
            self.conversations[which] = self.begin();
        }
        let said = self.text(TURN_TOKENS);
        let conversation = &mut self.conversations[which];
        conversation.tokens.extend(said);
        let (tenant, tokens) = (conversation.tenant, conversation.tokens.clone());
        let prompt = self.prompt(tenant, &tokens);
        let answer = (0..prompt.output_tokens).map(|index| prompt.output_token(index));
        self.conversations[which].tokens.extend(answer);
        prompt
    }

    fn prompt(&mut self, tenant: usize, tokens: &[u32]) -> Prompt {
        let (name, salt) = TENANTS[tenant];
        let plan = PagePlan::of_tokens(self.salts[salt], tokens, self.paging, |_| &[]);
        let mut prompt = Prompt::new(name, plan);
        prompt.output_tokens = self.between(OUTPUT_TOKENS);
        prompt.output_seed = self.made;
        prompt
    }

    fn text(&mut self, length: (u32, u32)) -> Vec<u32> {
        let tokens = self.between(length);
        (0..tokens).map(|_| draw(&mut self.chance) as u32).collect()
    }

    fn between(&mut self, (least, most): (u32, u32)) -> u32 {
        least + self.below(most - least + 1)
    }

    fn below(&mut self, end: u32) -> u32 {
        (draw(&mut self.chance) % u64::from(end)) as u32
    }
}

impl Iterator for Workload {
    type Item = Prompt;

    fn next(&mut self) -> Option<Prompt> {
        self.made += 1;
        if self.below(1_000) >= LONG_PERMILLE {
            return Some(self.turn());
        }
        let tenant = self.below(TENANTS.len() as u32) as usize;
        let tokens = self.text(LONG_TOKENS);
        Some(self.prompt(tenant, &tokens))
    }
}

/// The root of the keys of everything below `salt` in a group that stores what `manifest` says.
pub(super) fn root(manifest: &Manifest, salt: &str) -> Key {
    let draft = manifest.layers().1 > 0;
    KeyRoot {
        target_model: "synthetic".to_owned(),
        draft_model: if draft { "synthetic-draft".to_owned() } else { String::new() },
        weights_version: "1".to_owned(),
        manifest_digest: manifest.digest(),
        page_tokens: manifest.page_tokens,
        format_version: FORMAT_VERSION,
        adapter: String::new(),
        tenant_salt: salt.as_bytes().to_vec(),
    }
    .key()
}
