//! Says what crosses the bus, for whoever looks for the cause of a violation.

use hicached_actors::host::{Dest, Parcel};
use hicached_actors::protocol::{
    Address, AllocatorIn, Answer, Envelope, EvictorIn, IndexNews, LoaderIn, RankIn, ReceiverIn, Request, SenderIn,
    Time, WriterIn,
};

use crate::net::{Message, To};

/// One line about a parcel of a control machine.
pub(crate) fn sent(now: Time, from: Address, parcel: &Parcel) -> String {
    let to = match &parcel.to {
        Dest::Actor(to) => to.to_string(),
        Dest::Peer(group, to) => format!("{to} of {group}"),
        Dest::Reply(reply) => format!("request {}", reply.0),
        Dest::Events => "events".to_owned(),
    };
    line(now, from, &to, &parcel.bytes)
}

/// One line about a message that arrives.
pub(crate) fn arrived(now: Time, message: &Message) -> String {
    let to = match message.to {
        To::Actor(to) => to.to_string(),
        To::Request(number) => format!("request {number}"),
        To::Events => "events".to_owned(),
    };
    line(now, message.from, &format!("{to} (arrives)"), &message.bytes)
}

fn line(now: Time, from: Address, to: &str, bytes: &[u8]) -> String {
    let Ok(envelope) = Envelope::decode(bytes) else { return format!("{} {from} > {to}: no message", now.ns / 1_000) };
    let (kind, body) = (envelope.kind.as_str(), &envelope.body.0);
    let text = match to.split(' ').next().unwrap_or("") {
        "index" => Request::decode_body(kind, body)
            .map(|body| format!("{body:?}"))
            .or_else(|| IndexNews::decode_body(kind, body).map(|body| format!("{body:?}"))),
        "allocator" => AllocatorIn::decode_body(kind, body).map(|body| format!("{body:?}")),
        "evictor" => EvictorIn::decode_body(kind, body).map(|body| format!("{body:?}")),
        "writer" => WriterIn::decode_body(kind, body).map(|body| format!("{body:?}")),
        "loader" => LoaderIn::decode_body(kind, body).map(|body| format!("{body:?}")),
        "sender" => SenderIn::decode_body(kind, body).map(|body| format!("{body:?}")),
        "receiver" => ReceiverIn::decode_body(kind, body).map(|body| format!("{body:?}")),
        "request" => Answer::decode_body(kind, body).map(|body| format!("{body:?}")),
        "events" => None,
        _ => RankIn::decode_body(kind, body).map(|body| format!("{body:?}")),
    };
    let life = u32::from_be_bytes(envelope.incarnation.0[..4].try_into().unwrap_or_default());
    let text = text.unwrap_or_else(|| kind.to_owned());
    format!("{} {from} of {life:08x} > {to}: {:?} {text}", now.ns / 1_000, envelope.op)
}
