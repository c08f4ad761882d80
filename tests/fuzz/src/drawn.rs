//! Messages drawn from bytes: a decoder of the wire types whose input is a fuzzer's choice, so that what it
//! makes follows the schema and speaks of what exists.

use std::any::type_name;

use hicached_actors::protocol::*;
use serde::de::value::Error;
use serde::de::{DeserializeSeed, Deserializer, Error as _, Expected, SeqAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};

use crate::known::Known;
use crate::source::Source;

/// Kind and body of a message that the inbox of `to` knows, or of one that nobody knows.
pub(crate) fn message(to: Address, src: &mut Source<'_>, known: &Known) -> (String, Vec<u8>) {
    macro_rules! of {
        ($inbox:ty) => {{
            let codes = <$inbox>::CODES;
            match codes.get(usize::from(src.u8()) % (codes.len() + 1)) {
                Some(code) => {
                    let drawn = <$inbox>::deserialize(&mut Draw::new(src, known, code));
                    let drawn = drawn.expect("every type of the wire can be drawn");
                    (drawn.code().to_owned(), drawn.encode_body())
                }
                None => special(src),
            }
        }};
    }
    match to {
        Address::Index if src.u8().is_multiple_of(2) => of!(Request),
        Address::Index => of!(IndexNews),
        Address::Allocator => of!(AllocatorIn),
        Address::Evictor => of!(EvictorIn),
        Address::Writer => of!(WriterIn),
        Address::Loader => of!(LoaderIn),
        Address::Sender => of!(SenderIn),
        Address::Receiver => of!(ReceiverIn),
        Address::Rank(_) => of!(RankIn),
        Address::Engine => of!(Answer),
    }
}

fn special(src: &mut Source<'_>) -> (String, Vec<u8>) {
    if src.u8().is_multiple_of(2) {
        return ("resync".to_owned(), encode(&Resync { expected: src.number() }));
    }
    ("nonsense".to_owned(), src.counted().to_vec())
}

/// Where one value comes from.
struct Draw<'s, 'd, 'k> {
    src: &'s mut Source<'d>,
    known: &'k Known,
    /// The code of the enum that is drawn next.
    code: Option<&'static str>,
    /// Name of the type that is drawn next.
    wanted: &'static str,
}

impl<'s, 'd, 'k> Draw<'s, 'd, 'k> {
    fn new(src: &'s mut Source<'d>, known: &'k Known, code: &'static str) -> Self {
        Self { src, known, code: Some(code), wanted: "" }
    }

    fn len(&mut self) -> usize {
        match self.src.u8() {
            255 => 300,
            len => usize::from(len % 10),
        }
    }

    /// The bytes of a list of ids, owners or bits, by the type that wants them.
    fn bytes(&mut self) -> Vec<u8> {
        let is = |name: &str| self.wanted.ends_with(name);
        if is("::Key>") || is("::Incarnation>") || is("::OpId>") {
            return self.known.id(self.src).to_vec();
        }
        if is("::Keys>") {
            return (0..self.len()).flat_map(|_| self.known.id(self.src)).collect();
        }
        if is("::Pages>") || is("::Slots>") || is("::Positions>") || is("::PeerPages>") {
            return (0..self.len()).flat_map(|_| (self.src.number() as u32).to_le_bytes()).collect();
        }
        if is("::Owners>") {
            let cp_size = self.known.cp_size;
            return (0..self.len()).map(|_| self.src.u8()).map(|of| if of > 200 { of } else { of % cp_size }).collect();
        }
        match self.src.u8() {
            many @ 0..=127 => vec![0xff; usize::from(many % 8)],
            _ => self.src.counted().to_vec(),
        }
    }

    fn text(&mut self) -> String {
        let texts: [&str; 12] = [
            "t",
            "",
            "target.kv",
            "target.index",
            "draft.kv",
            "draft.index",
            "u8",
            "other",
            &self.known.segment,
            "/dev/null",
            "/dev/shm/nobody-made-this",
            "\u{0}\u{10ffff}",
        ];
        match self.src.u8() {
            255 => String::from_utf8_lossy(self.src.counted()).into_owned(),
            at => texts[usize::from(at) % texts.len()].to_owned(),
        }
    }
}

impl<'de> Deserializer<'de> for &mut Draw<'_, '_, '_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        Err(Error::custom(format_args!("{} asks for anything", &visitor as &dyn Expected)))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(!self.src.u8().is_multiple_of(2))
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let byte = self.src.u8();
        if self.wanted.ends_with("::Rank>") && byte < 200 {
            return visitor.visit_u8(byte % self.known.cp_size);
        }
        visitor.visit_u8(byte)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u32(self.src.number() as u32)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u64(self.src.number())
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.code.take() {
            Some(code) => visitor.visit_str(code),
            None => visitor.visit_string(self.text()),
        }
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bytes(&self.bytes())
    }

    /// A struct takes as many elements as it has fields, a list as many as are drawn, an enum its code and body.
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let expected = (&visitor as &dyn Expected).to_string();
        let is_enum = expected.starts_with("[code, body]");
        if is_enum && self.code.is_none() {
            self.code = Some(*self.src.one_of::<&str>(Refusal::CODES));
        }
        let is_struct = expected.starts_with("the fields of");
        let left = if is_enum || is_struct { usize::MAX } else { self.len() };
        visitor.visit_seq(Elements { draw: self, left })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Elements { draw: self, left: len })
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u16 u128 f32 f64 char str byte_buf option unit unit_struct newtype_struct tuple_struct
        map struct enum identifier ignored_any
    }
}

struct Elements<'a, 's, 'd, 'k> {
    draw: &'a mut Draw<'s, 'd, 'k>,
    left: usize,
}

impl<'de> SeqAccess<'de> for Elements<'_, '_, '_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let wanted = type_name::<T>();
        // What comes behind the last field is skipped by every struct.
        if self.left == 0 || wanted.ends_with("IgnoredAny>") {
            return Ok(None);
        }
        self.left -= 1;
        let known = self.draw.known;
        let ready = match wanted {
            _ if wanted.ends_with("::Manifest>") => &known.manifest,
            _ if wanted.ends_with("Vec<hicached_actors::protocol::engine::Region>>") => &known.regions,
            _ => &Vec::new(),
        };
        if !ready.is_empty() && self.draw.src.u8() < 200 {
            let mut bytes = ready.as_slice();
            let value = seed.deserialize(&mut rmp_serde::Deserializer::new(&mut bytes));
            return value.map(Some).map_err(Error::custom);
        }
        self.draw.wanted = wanted;
        seed.deserialize(&mut *self.draw).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_every_inbox_can_be_drawn_and_read_back() {
        let known = Known::new(Incarnation([7; 16]), 2, Vec::new());
        for to in [
            Address::Index,
            Address::Allocator,
            Address::Evictor,
            Address::Writer,
            Address::Loader,
            Address::Sender,
            Address::Receiver,
            Address::Rank(Rank(0)),
            Address::Engine,
        ] {
            for first in 0..=255 {
                for second in 0..64 {
                    let bytes: Vec<u8> =
                        [first, second].into_iter().chain((0..200_u8).map(|at| at.wrapping_mul(37))).collect();
                    let (kind, body) = message(to, &mut Source::new(&bytes), &known);
                    let read = match to {
                        Address::Index => IndexIn::decode_body(&kind, &body).map(|read| read.err()),
                        Address::Allocator => AllocatorIn::decode_body(&kind, &body).map(|read| read.err()),
                        Address::Evictor => EvictorIn::decode_body(&kind, &body).map(|read| read.err()),
                        Address::Writer => WriterIn::decode_body(&kind, &body).map(|read| read.err()),
                        Address::Loader => LoaderIn::decode_body(&kind, &body).map(|read| read.err()),
                        Address::Sender => SenderIn::decode_body(&kind, &body).map(|read| read.err()),
                        Address::Receiver => ReceiverIn::decode_body(&kind, &body).map(|read| read.err()),
                        Address::Rank(_) => RankIn::decode_body(&kind, &body).map(|read| read.err()),
                        Address::Engine => Answer::decode_body(&kind, &body).map(|read| read.err()),
                    };
                    let is_special = kind == "resync" || kind == "nonsense";
                    assert!(read == Some(None) || is_special, "{kind}: {read:?}");
                }
            }
        }
    }
}
