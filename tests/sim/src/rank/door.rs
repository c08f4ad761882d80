//! Bytes around a fake rank: envelopes, numbers, and which control incarnation it obeys.

use hicached_actors::host::{Dest, Parcel};
use hicached_actors::machine::is_urgent;
use hicached_actors::protocol::{Address, Bin, Envelope, Incarnation, OpId, Outgoing, RankIn, Resync, VERSION, encode};

use super::RankProcess;
use crate::memory::Memory;
use crate::net::Net;

impl RankProcess {
    /// Takes the bytes of one message.
    pub fn deliver(&mut self, net: &mut Net, memory: &mut Memory, bytes: &[u8]) {
        if !self.alive {
            return;
        }
        let Ok(envelope) = Envelope::decode(bytes) else { return };
        let Ok(from) = Address::parse(&envelope.sender) else { return };
        if from == Address::Engine {
            return;
        }
        let msg = RankIn::decode_body(&envelope.kind, &envelope.body.0);
        if let Some(Ok(RankIn::Adopt(adopt))) = &msg {
            self.link.saw(net.now, (from, envelope.urgent), envelope.incarnation, envelope.seq);
            return self.adopt(net, memory, envelope.incarnation, adopt);
        }
        if self.adopted.is_none_or(|by| by.control != envelope.incarnation) {
            self.stale += 1;
            return;
        }
        self.link.saw(net.now, (from, envelope.urgent), envelope.incarnation, envelope.seq);
        self.ask_for_missing(net);
        if envelope.kind == "resync" {
            self.say_again(net, from);
            if from == Address::Sender {
                self.say_pushed_again(net);
            }
            return self.hello(net, memory);
        }
        if let Some(Ok(msg)) = msg {
            self.act(net, memory, from, envelope.op, msg);
        }
    }

    pub(super) fn send(&mut self, net: &mut Net, to: Outgoing, op: OpId) {
        let Some(address) = to.address() else { return };
        let (kind, body) = to.encode_body();
        self.post(net, address, kind, op, body);
    }

    pub(super) fn ask_for_missing(&mut self, net: &mut Net) {
        for (peer, expected) in self.link.wake(net.now) {
            self.post(net, peer, "resync", OpId::default(), encode(&Resync { expected }));
        }
    }

    fn post(&mut self, net: &mut Net, to: Address, kind: &str, op: OpId, body: Vec<u8>) {
        let urgent = is_urgent(kind);
        let control: Incarnation = self.adopted.map(|by| by.control).unwrap_or_default();
        let envelope = Envelope {
            version: VERSION,
            kind: kind.to_owned(),
            id: self.ids.draw(),
            op,
            sender: Address::Rank(self.rank).to_string(),
            incarnation: self.life,
            control,
            seq: self.link.give(to, urgent),
            urgent,
            remaining_ms: 0,
            body: Bin(body),
        };
        let parcel = Parcel { to: Dest::Actor(to), urgent, bytes: encode(&envelope), trace: None };
        net.post(Address::Rank(self.rank), parcel);
    }
}
