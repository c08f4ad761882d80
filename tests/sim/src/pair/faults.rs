//! What goes wrong between two groups: sender and receiver stop hearing each other, connections break or carry
//! nothing, and both groups lose members at once.

use hicached_actors::protocol::{Address, Rank};

use super::Pair;
use crate::net::Event;

impl Pair {
    /// Draws what goes wrong, and the next tick.
    pub(super) fn draw_faults(&mut self) {
        let net = &mut self.between;
        let rank = Rank(net.chance.index(usize::from(self.prefill.sizes.cp)) as u8);
        if net.chance.happens(net.mix.partition) {
            let ms = net.chance.within(10, 4_000);
            net.cut(Address::Sender, Address::Receiver, ms);
        }
        if net.chance.happens(net.mix.partition) {
            let ms = net.chance.within(10, 1_000);
            self.wire.cut(net.now, rank, ms);
        }
        let breaks = net.chance.happens(net.mix.rank_death * 3);
        let both = net.chance.happens(net.mix.control_death / 2);
        let us = net.chance.within(20_000, 120_000);
        net.after_us(us, Event::Fault);
        if breaks {
            self.break_connection(rank);
        }
        if both {
            self.prefill.control_dies();
            self.decode.control_dies();
        }
    }

    /// Every fault ends, and whoever is dead comes back.
    pub(super) fn heal(&mut self) {
        self.prefill.heal();
        self.decode.heal();
        self.between.heal_all();
        self.wire.heal();
    }
}
