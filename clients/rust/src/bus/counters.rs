//! What a bus counts. One table names every counter once.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident $variant:ident,)*) => {
        /// Everything a bus counted since it was made. Counters only grow.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct BusCounters { $($(#[$doc])* pub $name: u64,)* }

        /// Names one counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Count { $($(#[$doc])* $variant,)* }

        /// The counters of one bus, written by an implementation.
        #[derive(Debug, Default)]
        pub struct Counters { $($name: AtomicU64,)* }

        impl Counters {
            /// Adds `n`.
            pub fn add(&self, count: Count, n: u64) {
                match count { $(Count::$variant => self.$name.fetch_add(n, Ordering::Relaxed),)* };
            }

            /// Reads all of them, one after the other.
            pub fn snapshot(&self) -> BusCounters {
                BusCounters { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl BusCounters {
            /// Name and value of each, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Frames handed over, requests and replies among them.
    sent Sent,
    /// Frames put into an inbox.
    received Received,
    /// Requests made.
    requests Requests,
    /// Requests that ended with a reply: round trips.
    replies Replies,
    /// Requests to subjects that nobody served.
    no_responders NoResponders,
    /// Requests that reached their deadline.
    timed_out TimedOut,
    /// Sends refused and requests ended because the connection was down.
    disconnected Disconnected,
    /// Frames refused here because a queue of this process was full: towards the connection, of open requests.
    busy_sending BusySending,
    /// Frames that found an inbox full.
    busy_inbox BusyInbox,
    /// Frames over the broker's limit, refused before sending.
    too_large TooLarge,
    /// Answers to requests that had ended already.
    late_replies LateReplies,
    /// Frames for subjects that nobody served, as far as the bus could see it.
    unrouted Unrouted,
    /// Inbound messages lost by the client library because a subscription was full; at least this many.
    dropped Dropped,
    /// Inbound headers left out because they were over a bound or not printable; their frames were delivered.
    headers_dropped HeadersDropped,
    /// Times a connection went down.
    disconnects Disconnects,
    /// Times a connection came back.
    reconnects Reconnects,
    /// Attempts to connect, the first included.
    connect_attempts ConnectAttempts,
    /// Errors the broker reported.
    broker_errors BrokerErrors,
}

impl Counters {
    /// Adds 1.
    pub fn bump(&self, count: Count) {
        self.add(count, 1);
    }
}
