//! Page keys: 128-bit chained SHA-256 (requirement E4). Engines compute them through the client library.

use sha2::{Digest, Sha256};

use super::Key;

/// What a chain of keys is rooted in: two groups that differ in any field share no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRoot {
    /// Target model id.
    pub target_model: String,
    /// Draft model id, empty without a draft.
    pub draft_model: String,
    /// Version of the weights.
    pub weights_version: String,
    /// Digest of the manifest.
    pub manifest_digest: [u8; 32],
    /// Tokens in a page.
    pub page_tokens: u32,
    /// Version of the record format.
    pub format_version: u32,
    /// Adapter, or empty.
    pub adapter: String,
    /// Tenants share pages only if their salts are equal.
    pub tenant_salt: Vec<u8>,
}

impl KeyRoot {
    /// The root of the chain, which also is the salt id that messages carry.
    pub fn key(&self) -> Key {
        root_of(&[
            self.target_model.as_bytes(),
            self.draft_model.as_bytes(),
            self.weights_version.as_bytes(),
            &self.manifest_digest,
            &self.page_tokens.to_le_bytes(),
            &self.format_version.to_le_bytes(),
            self.adapter.as_bytes(),
            &self.tenant_salt,
        ])
    }
}

/// First 16 bytes of SHA-256 over the fields in order, each as u32 little-endian length and bytes.
fn root_of(fields: &[&[u8]]) -> Key {
    let mut hash = Sha256::new();
    for field in fields {
        hash.update((field.len() as u32).to_le_bytes());
        hash.update(field);
    }
    first_16(hash)
}

/// The key of a page: `tokens` are the page's tokens, with lookahead followed by the next token;
/// `extra` are bytes beyond the tokens (image hashes), usually empty.
pub fn page_key(parent: Key, tokens: &[u32], extra: &[u8]) -> Key {
    let mut hash = Sha256::new();
    hash.update(parent.0);
    hash.update((tokens.len() as u32).to_le_bytes());
    for token in tokens {
        hash.update(token.to_le_bytes());
    }
    hash.update((extra.len() as u32).to_le_bytes());
    hash.update(extra);
    first_16(hash)
}

/// Keys of every page of `tokens` that can be keyed: whole pages, and with lookahead only those whose
/// next token is known. `extra` gives the extra bytes of page `i`.
pub fn page_keys<'a>(
    root: Key,
    tokens: &[u32],
    page_tokens: u32,
    lookahead_tokens: u32,
    extra: impl Fn(usize) -> &'a [u8],
) -> Vec<Key> {
    let (page, lookahead) = (page_tokens as usize, lookahead_tokens as usize);
    let pages = tokens.len().saturating_sub(lookahead) / page;
    let mut parent = root;
    (0..pages)
        .map(|index| {
            parent = page_key(parent, &tokens[index * page..(index + 1) * page + lookahead], extra(index));
            parent
        })
        .collect()
}

fn first_16(hash: Sha256) -> Key {
    let digest: [u8; 32] = hash.finalize().into();
    let (first, _) = digest.split_at(16);
    Key(first.try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_equal_the_vectors() {
        let text = include_str!("../../../tests/data/keys.json");
        let vectors: serde_json::Value = serde_json::from_str(text).unwrap();
        let bytes = |value: &serde_json::Value| -> Vec<u8> {
            let text = value.as_str().unwrap();
            (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
        };
        let number = |value: &serde_json::Value| value.as_u64().unwrap() as u32;
        let cases = vectors["cases"].as_array().unwrap();
        assert!(!cases.is_empty());
        for case in cases {
            let fields: Vec<Vec<u8>> = case["root_fields_hex"].as_array().unwrap().iter().map(bytes).collect();
            let text = |at: usize| String::from_utf8(fields[at].clone()).unwrap();
            let root = KeyRoot {
                target_model: text(0),
                draft_model: text(1),
                weights_version: text(2),
                manifest_digest: fields[3].clone().try_into().unwrap(),
                page_tokens: u32::from_le_bytes(fields[4].clone().try_into().unwrap()),
                format_version: u32::from_le_bytes(fields[5].clone().try_into().unwrap()),
                adapter: text(6),
                tenant_salt: fields[7].clone(),
            }
            .key();
            assert_eq!(root.0.to_vec(), bytes(&case["root"]));
            let tokens: Vec<u32> = case["tokens"].as_array().unwrap().iter().map(number).collect();
            let extra: Vec<Vec<u8>> = case["extra_hex_per_page"].as_array().unwrap().iter().map(bytes).collect();
            let (page, lookahead) = (number(&case["page_tokens"]), number(&case["draft_lookahead_tokens"]));
            let keys = page_keys(root, &tokens, page, lookahead, |index| &extra[index]);
            let want: Vec<Vec<u8>> = case["keys"].as_array().unwrap().iter().map(bytes).collect();
            assert_eq!(keys.iter().map(|key| key.0.to_vec()).collect::<Vec<_>>(), want);
        }
    }
}
