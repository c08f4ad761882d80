//! One agent of NIXL: what it has registered, whom it knows, what it writes.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{NonNull, null};
use std::sync::Arc;

use super::library::{AgentConfig, DRAM, Failed, Library, Object, PLUGIN, WRITE, done, is_over, made};
use crate::wire::pool::Span;

/// An agent, with its connections and registrations. What is on its way ends when the last handle of it is dropped:
/// the library then reads and writes no memory for it any more.
#[derive(Debug)]
pub(super) struct Agent {
    inner: Arc<Inner>,
}

/// What an agent is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// It writes.
    Sends,
    /// It is written to.
    Receives,
}

#[derive(Debug)]
struct Inner {
    library: &'static Library,
    agent: Object,
    backend: Object,
    options: Object,
}

// SAFETY: the library lets any thread use an agent, as long as it is one at a time; every call of this module takes
// the agent, or a transfer of it, mutably or ends it, and an agent and its transfers stay together in one place.
unsafe impl Send for Inner {}
// SAFETY: as above; nothing is done through a shared reference.
unsafe impl Sync for Inner {}

impl Agent {
    /// An agent called `name`, unlike every other that it will meet. `ucx` are settings of the transport. One of the
    /// side that is written to moves what comes along by itself; one that writes does so when it is asked how far it
    /// is, which is twice as fast over TCP.
    ///
    /// # Errors
    /// [`Failed`]: no plugin, no transport that fits the settings, no memory.
    pub(super) fn new(library: &'static Library, name: &str, side: Side, ucx: &[String]) -> Result<Self, Failed> {
        let name = text(name)?;
        let config = AgentConfig {
            progress_thread: side == Side::Receives,
            workers: 1,
            progress_delay_us: PROGRESS_DELAY_US,
            ..AgentConfig::default()
        };
        // SAFETY: the text, the configuration and the place for the object live for the call.
        let agent =
            made("an agent", |made| unsafe { (library.create_configured_agent)(name.as_ptr(), &config, made) })?;
        let none = std::ptr::null_mut();
        let mut inner = Inner { library, agent, backend: none, options: none };
        let params = inner.params(ucx)?;
        // SAFETY: the agent and the parameters live, and the text and the place live for the call.
        let backend =
            made("the plugin UCX", |made| unsafe { (library.create_backend)(agent, PLUGIN.as_ptr(), params, made) });
        // SAFETY: made above and not used again.
        unsafe { (library.destroy_params)(params) };
        inner.backend = backend?;
        // SAFETY: the place lives for the call.
        inner.options = made("options", |made| unsafe { (library.create_opt_args)(made) })?;
        // SAFETY: both live.
        done("options", unsafe { (library.opt_args_add_backend)(inner.options, inner.backend) })?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Lets the agent read and write `memory`, and its peers write there. It stays mapped until the agent is dropped,
    /// or the registration is given back.
    ///
    /// # Errors
    /// [`Failed`].
    pub(super) fn register(&mut self, memory: Span) -> Result<Registration, Failed> {
        let Inner { library, agent, options, .. } = *self.inner;
        // SAFETY: the place lives for the call.
        let list = made("a list of memory", |made| unsafe { (library.create_reg_dlist)(DRAM, made) })?;
        let (start, bytes) = (memory.start.as_ptr() as usize, memory.bytes);
        // SAFETY: the list lives; no metadata goes with the memory.
        let added = unsafe { (library.reg_dlist_add_desc)(list, start, bytes, 0, null(), 0) };
        let registered = done("a list of memory", added)
            // SAFETY: all three live, and the memory is mapped (contract of `Span`).
            .and_then(|()| done("registering memory", unsafe { (library.register_mem)(agent, list, options) }));
        match registered {
            Ok(()) => Ok(Registration { list }),
            Err(failed) => {
                // SAFETY: made above and not used again.
                unsafe { (library.destroy_reg_dlist)(list) };
                Err(failed)
            }
        }
    }

    /// Gives a registration back.
    ///
    /// # Errors
    /// [`Failed`]: then it stays until the agent is dropped.
    pub(super) fn give_back(&mut self, registration: Registration) -> Result<(), Failed> {
        let Inner { library, agent, options, .. } = *self.inner;
        // SAFETY: all three live.
        let given = done("giving memory back", unsafe { (library.deregister_mem)(agent, registration.list, options) });
        // SAFETY: not used again.
        unsafe { (library.destroy_reg_dlist)(registration.list) };
        given
    }

    /// What a peer has to know to write to what is registered.
    ///
    /// # Errors
    /// [`Failed`].
    pub(super) fn description(&mut self) -> Result<Vec<u8>, Failed> {
        let Inner { library, agent, .. } = *self.inner;
        let (mut start, mut bytes) = (std::ptr::null_mut::<c_void>(), 0);
        // SAFETY: the agent and both places live.
        done("describing the agent", unsafe { (library.get_local_md)(agent, &mut start, &mut bytes) })?;
        let Some(start) = NonNull::new(start) else { return Ok(Vec::new()) };
        // SAFETY: the library has allocated so many bytes there, for the caller to free.
        let description = unsafe { std::slice::from_raw_parts(start.as_ptr().cast::<u8>(), bytes) }.to_vec();
        // SAFETY: allocated by the C library for the caller, and not used again.
        unsafe { libc::free(start.as_ptr()) };
        Ok(description)
    }

    /// Takes in the description of a peer.
    ///
    /// # Errors
    /// [`Failed`]: it is none, or the peer cannot be reached that way.
    pub(super) fn meet(&mut self, description: &[u8]) -> Result<PeerName, Failed> {
        let Inner { library, agent, .. } = *self.inner;
        let mut name = std::ptr::null_mut::<c_char>();
        let (start, bytes) = (description.as_ptr().cast(), description.len());
        // SAFETY: the agent, the bytes and the place live for the call.
        done("meeting a peer", unsafe { (library.load_remote_md)(agent, start, bytes, &mut name) })?;
        let what = "meeting a peer";
        let name = NonNull::new(name).ok_or(Failed::nameless(what))?;
        // SAFETY: a text that the library has allocated for the caller.
        let text = unsafe { CStr::from_ptr(name.as_ptr()) }.to_owned();
        // SAFETY: allocated by the C library for the caller, and not used again.
        unsafe { libc::free(name.as_ptr().cast()) };
        Ok(PeerName(text))
    }

    /// Begins to write `from`, memory that is registered here, to the address `to` of a peer and behind it. The memory
    /// is read until the transfer is over or, when it is dropped before that, until the agent is.
    ///
    /// # Errors
    /// [`Failed`]: memory that is not registered at its side, or a peer that is gone.
    pub(super) fn write(&mut self, from: &[Span], to: u64, peer: &PeerName) -> Result<Transfer, Failed> {
        let mut to = to as usize;
        let (here, there) = (List::new(self.inner.library)?, List::new(self.inner.library)?);
        for span in from {
            here.add(span.start.as_ptr() as usize, span.bytes)?;
            there.add(to, span.bytes)?;
            to += span.bytes;
        }
        let Inner { library, agent, options, .. } = *self.inner;
        // SAFETY: everything named lives for the call.
        let request = made("a transfer", |made| unsafe {
            (library.create_xfer_req)(agent, WRITE, here.list, there.list, peer.0.as_ptr(), made, options)
        })?;
        let mut transfer = Transfer { agent: self.inner.clone(), request, over: false };
        // SAFETY: all three live.
        transfer.over = is_over("a transfer", unsafe { (library.post_xfer_req)(agent, request, options) })?;
        Ok(transfer)
    }
}

impl Inner {
    /// Parameters of the plugin.
    fn params(&self, ucx: &[String]) -> Result<Object, Failed> {
        let Self { library, agent, .. } = *self;
        let (mut kinds, mut defaults) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the agent, the text and both places live for the call.
        let found = unsafe { (library.get_plugin_params)(agent, PLUGIN.as_ptr(), &mut kinds, &mut defaults) };
        done("finding the plugin UCX", found)?;
        // SAFETY: made by the call above and not used again.
        unsafe { (library.destroy_mem_list)(kinds) };
        if !ucx.is_empty() {
            let settings = text(&ucx.join(","));
            let added = settings.and_then(|settings| {
                // SAFETY: the parameters and both texts live for the call.
                let added = unsafe { (library.params_add)(defaults, c"engine_config".as_ptr(), settings.as_ptr()) };
                done("settings of UCX", added)
            });
            if let Err(failed) = added {
                // SAFETY: made above and not used again.
                unsafe { (library.destroy_params)(defaults) };
                return Err(failed);
            }
        }
        Ok(defaults)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Self { library, agent, backend, options } = *self;
        if !options.is_null() {
            // SAFETY: made by this agent and not used again.
            unsafe { (library.destroy_opt_args)(options) };
        }
        // SAFETY: the agent is not used again: its transfers hold it, and are gone. It ends its connections and
        // registrations itself, and what it has begun.
        unsafe { (library.destroy_agent)(agent) };
        if !backend.is_null() {
            // SAFETY: a handle alone, whose plugin went with the agent.
            unsafe { (library.destroy_backend)(backend) };
        }
    }
}

/// Memory that an agent may use.
#[derive(Debug)]
pub(super) struct Registration {
    list: Object,
}

// SAFETY: a list that nobody else knows.
unsafe impl Send for Registration {}

/// How an agent calls a peer.
#[derive(Debug)]
pub(super) struct PeerName(CString);

/// Bytes on their way.
#[derive(Debug)]
pub(super) struct Transfer {
    agent: Arc<Inner>,
    request: Object,
    over: bool,
}

impl Transfer {
    /// Whether every byte is written at the other side.
    ///
    /// # Errors
    /// [`Failed`]: it will never be.
    pub(super) fn is_over(&mut self) -> Result<bool, Failed> {
        if !self.over {
            // SAFETY: the agent and the request live.
            let status = unsafe { (self.agent.library.get_xfer_status)(self.agent.agent, self.request) };
            self.over = is_over("a transfer", status)?;
        }
        Ok(self.over)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let Inner { library, agent, .. } = *self.agent;
        // SAFETY: both live, and the request is not used again.
        unsafe {
            (library.release_xfer_req)(agent, self.request);
            (library.destroy_xfer_req)(self.request);
        }
    }
}

/// Pieces of memory of one side.
struct List {
    library: &'static Library,
    list: Object,
}

impl List {
    fn new(library: &'static Library) -> Result<Self, Failed> {
        // SAFETY: the place lives for the call.
        let list = made("a list of pieces", |made| unsafe { (library.create_xfer_dlist)(DRAM, made) })?;
        Ok(Self { library, list })
    }

    fn add(&self, start: usize, bytes: usize) -> Result<(), Failed> {
        // SAFETY: the list lives; the call notes the numbers.
        done("a list of pieces", unsafe { (self.library.xfer_dlist_add_desc)(self.list, start, bytes, 0) })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: not used again; a transfer has its own copy.
        unsafe { (self.library.destroy_xfer_dlist)(self.list) };
    }
}

fn text(text: &str) -> Result<CString, Failed> {
    CString::new(text).map_err(|_| Failed::nameless("a text with a zero byte"))
}

/// What comes wakes the thread; this is for what does not. Without a pause it keeps a third of a core busy.
const PROGRESS_DELAY_US: u64 = 1_000;
