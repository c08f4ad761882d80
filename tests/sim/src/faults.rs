//! Deaths, cuts, damage, operators and nonsense, drawn at every fault tick.

use std::sync::Arc;

use hicached_actors::protocol::{
    Address, EvictorIn, Flush, HostSlot, Keys, MakeRoom, OpId, Pin, Probe, Rank, Replay, Status,
};

use crate::checks::Violation;
use crate::memory::Pool;
use crate::net::{Event, Message, To};
use crate::world::Sim;

impl Sim {
    /// Draws what goes wrong, and the next tick.
    pub(crate) fn draw_faults(&mut self) -> Result<(), Violation> {
        let mix = self.net.mix.clone();
        let rank = Rank(self.net.chance.index(usize::from(self.sizes.cp)) as u8);
        if self.net.chance.happens(mix.partition) {
            self.cut_two();
        }
        if self.net.chance.happens(mix.rank_death) {
            match self.net.chance.happens(500) {
                true => self.kill_rank(rank),
                false => self.rank_dies_after = Some((rank, self.net.chance.within(0, 30))),
            }
        }
        if self.net.chance.happens(mix.engine_death) {
            self.kill_engine();
        }
        if self.net.chance.happens(mix.total_loss) {
            self.lose_host(rank);
        }
        if self.net.chance.happens(mix.control_death) {
            match self.net.chance.happens(500) {
                true => self.control_dies(),
                false => self.control_dies_after = Some(self.net.chance.within(0, 60)),
            }
        }
        if self.net.chance.happens(mix.damage) {
            self.damage_some(rank);
        }
        if self.net.chance.happens(mix.operator) {
            self.operate();
        }
        if self.net.chance.happens(mix.garbage) {
            self.send_garbage();
        }
        let us = self.net.chance.within(20_000, 120_000);
        self.net.after_us(us, Event::Fault);
        Ok(())
    }

    /// The process of a rank dies and comes back after a while.
    pub fn kill_rank(&mut self, rank: Rank) {
        let process = &mut self.ranks[usize::from(rank.0)];
        if process.is_alive() {
            process.die(&mut self.net, &mut self.memory);
            let slow = self.net.chance.happens(500);
            let us = self.net.chance.within(1_000, if slow { 3_000_000 } else { 20_000 });
            self.net.after_us(us, Event::Restart(rank));
        }
    }

    /// Every engine rank dies with its segment, and a new engine begins.
    pub fn kill_engine(&mut self) {
        self.net.stats.engine_deaths += 1;
        self.engine.restart(&mut self.net, &mut self.memory);
    }

    /// A host is replaced: its pool is empty, and its engine rank takes the others with it.
    pub fn lose_host(&mut self, rank: Rank) {
        let at = usize::from(rank.0);
        if self.ranks[at].is_alive() {
            self.ranks[at].die(&mut self.net, &mut self.memory);
        }
        self.memory.pools[at] = Pool::new(&self.memory.layout, self.sizes.l2_pages);
        self.kill_engine();
        let us = self.net.chance.within(1_000, 3_000_000);
        self.net.after_us(us, Event::Restart(rank));
    }

    fn cut_two(&mut self) {
        let mut members = self.control.addresses();
        members.extend((0..self.sizes.cp).map(|rank| Address::Rank(Rank(rank))));
        members.push(Address::Engine);
        let (a, b) = (self.net.chance.one_of(&members), self.net.chance.one_of(&members));
        let ms = self.net.chance.within(10, 4_000);
        if a != b {
            self.net.cut(a, b, ms);
        }
    }

    /// A component of some sealed record breaks; a scrub or the next load finds it.
    fn damage_some(&mut self, rank: Rank) {
        let rows = &self.memory.pools[usize::from(rank.0)].rows;
        let sealed: Vec<u32> = (0..rows.len() as u32).filter(|slot| rows[*slot as usize].sealed).collect();
        if sealed.is_empty() {
            return;
        }
        let slot = HostSlot(self.net.chance.one_of(&sealed));
        let part = self.net.chance.index(self.memory.layout.parts.len());
        let component = self.memory.layout.parts[part].component.clone();
        self.damage(rank, slot, &component);
        if self.net.chance.happens(500) && self.ranks[usize::from(rank.0)].is_alive() {
            self.ranks[usize::from(rank.0)].report_damage(&mut self.net, slot, component);
        }
    }

    /// Breaks one component of a record.
    pub fn damage(&mut self, rank: Rank, slot: HostSlot, component: &str) {
        for part in 0..self.memory.layout.parts.len() {
            if self.memory.layout.parts[part].component == component {
                self.memory.l2_mut(rank, slot, part).fill(crate::layout::POISON);
            }
        }
        self.memory.pools[usize::from(rank.0)].rows[slot.0 as usize].damaged = Some(component.to_owned());
    }

    fn operate(&mut self) {
        let some = self.engine.sessions.values().next();
        let (salt, keys) = some.map(|session| (session.spec.salt, session.keys.clone())).unwrap_or_default();
        let request = match self.net.chance.within(0, 6) {
            0 => Flush {
                tier: self.net.chance.within(0, 2) as u8,
                salt: vec![],
                prefix: Keys::default(),
                quarantined: false,
            }
            .into(),
            1 => Flush { tier: 0, salt: vec![salt], prefix: Keys::default(), quarantined: false }.into(),
            2 => Flush { tier: 0, salt: vec![], prefix: Keys::default(), quarantined: true }.into(),
            3 if !keys.is_empty() => {
                let pin = Pin { salt, keys: Keys(keys), on: true };
                self.pins.push(pin.clone());
                pin.into()
            }
            4 => Probe { tenant: "a".to_owned(), salt, keys: Keys(keys) }.into(),
            5 => Replay { from: 0, limit: 16 }.into(),
            _ => Status { cursor: u32::MAX }.into(),
        };
        self.engine.plain(&mut self.net, request);
        let tier = self.net.chance.within(1, 2) as u8;
        let wants = (0..self.sizes.cp).map(|_| self.net.chance.within(0, 3) as u32).collect();
        self.make_room(tier, wants);
    }

    /// An operator asks the evictor for room.
    pub fn make_room(&mut self, tier: u8, wants: Vec<u32>) -> OpId {
        let op = self.engine.ids.draw();
        let msg = EvictorIn::MakeRoom(MakeRoom { tier, wants });
        self.say(Address::Evictor, op, msg.code(), msg.encode_body());
        op
    }

    /// Somebody outside the group says something to a member of it.
    pub fn say(&mut self, to: Address, op: OpId, kind: &str, body: Vec<u8>) {
        let envelope = hicached_actors::protocol::Envelope {
            version: hicached_actors::protocol::VERSION,
            kind: kind.to_owned(),
            id: op,
            op,
            sender: Address::Engine.to_string(),
            incarnation: self.engine.lives[0],
            control: self.control.life,
            seq: 0,
            urgent: false,
            remaining_ms: 1_000,
            body: hicached_actors::protocol::Bin(body),
        };
        let bytes: Arc<[u8]> = hicached_actors::protocol::encode(&envelope).into();
        let reply = Some(Arc::from("0"));
        self.net.send(Message { from: Address::Engine, to: To::Actor(to), bytes, reply, trace: None }, false);
    }

    /// Bytes that are no message, bodies that are cut short, and kinds nobody knows.
    fn send_garbage(&mut self) {
        let members = self.control.addresses();
        let to = self.net.chance.one_of(&members);
        let kinds = ["open", "step", "close", "reserve", "free", "load", "backup", "copy_ack", "flush", "nonsense"];
        let kind = self.net.chance.one_of(&kinds);
        let body = (0..self.net.chance.within(0, 60)).map(|_| self.net.chance.any() as u8).collect();
        let op = self.engine.ids.draw();
        if self.net.chance.happens(700) {
            return self.say(to, op, kind, body);
        }
        let message = Message {
            from: Address::Engine,
            to: To::Actor(to),
            bytes: body.into(),
            reply: Some("0".into()),
            trace: None,
        };
        self.net.send(message, false);
    }

    /// Every fault ends, and whoever is dead comes back.
    pub fn heal(&mut self) {
        self.net.heal_all();
        (self.rank_dies_after, self.control_dies_after) = (None, None);
        for rank in 0..self.sizes.cp {
            if !self.ranks[usize::from(rank)].is_alive() {
                self.net.after_us(1_000, Event::Restart(Rank(rank)));
            }
        }
    }
}
