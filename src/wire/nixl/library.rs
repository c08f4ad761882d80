//! The C interface of NIXL, found when it is asked for: nothing of it is needed to build, and a library that is not
//! there, is another one or lacks a function is an error that says what to do.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

/// An object of the library. Each is used by one thread at a time.
pub(super) type Object = *mut c_void;
/// What every function answers.
pub(super) type Status = c_int;

/// Declares the functions by the names that the library gives them, without its prefix.
macro_rules! functions {
    ($($name:ident: fn($($arg:ty),* $(,)?);)*) => {
        /// The functions that transfers need.
        #[derive(Debug)]
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> Status,)*
        }

        impl Library {
            fn find(handle: &Handle) -> Result<Self, Fault> {
                Ok(Self { $($name: {
                    let name = concat!("nixl_capi_", stringify!($name));
                    // SAFETY: the type is that of the function of this name in the library's published header.
                    let found = unsafe { handle.get::<unsafe extern "C" fn($($arg),*) -> Status>(name) };
                    *found.map_err(|_| Fault::Function(name))?
                },)* })
            }
        }
    };
}

functions! {
    create_configured_agent: fn(*const c_char, *const AgentConfig, *mut Object);
    destroy_agent: fn(Object);
    params_add: fn(Object, *const c_char, *const c_char);
    destroy_params: fn(Object);
    create_backend: fn(Object, *const c_char, Object, *mut Object);
    destroy_backend: fn(Object);
    get_plugin_params: fn(Object, *const c_char, *mut Object, *mut Object);
    destroy_mem_list: fn(Object);
    create_opt_args: fn(*mut Object);
    opt_args_add_backend: fn(Object, Object);
    destroy_opt_args: fn(Object);
    create_reg_dlist: fn(c_int, *mut Object);
    reg_dlist_add_desc: fn(Object, usize, usize, u64, *const c_void, usize);
    destroy_reg_dlist: fn(Object);
    register_mem: fn(Object, Object, Object);
    deregister_mem: fn(Object, Object, Object);
    get_local_md: fn(Object, *mut *mut c_void, *mut usize);
    load_remote_md: fn(Object, *const c_void, usize, *mut *mut c_char);
    create_xfer_dlist: fn(c_int, *mut Object);
    xfer_dlist_add_desc: fn(Object, usize, usize, u64);
    destroy_xfer_dlist: fn(Object);
    create_xfer_req: fn(Object, c_int, Object, Object, *const c_char, *mut Object, Object);
    post_xfer_req: fn(Object, Object, Object);
    get_xfer_status: fn(Object, Object);
    release_xfer_req: fn(Object, Object);
    destroy_xfer_req: fn(Object);
}

/// How an agent is made, as the library lays it out.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AgentConfig {
    /// Whether a thread of the library moves bytes along while nobody asks.
    pub(super) progress_thread: bool,
    pub(super) listen_thread: bool,
    pub(super) listen_port: u16,
    /// 0: its calls come one at a time.
    pub(super) thread_sync: c_int,
    pub(super) workers: c_uint,
    /// Microseconds between two looks of the progress thread that nothing has woken; 0 has it never rest.
    pub(super) progress_delay_us: u64,
    pub(super) listen_delay_us: u64,
    pub(super) telemetry: bool,
}

/// Why the library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    /// It cannot be loaded.
    #[error("{0}")]
    Absent(String),
    /// It is of a version without this function.
    #[error("it has no {0}")]
    Function(&'static str),
    /// It does not work.
    #[error(transparent)]
    Failed(#[from] Failed),
}

/// A call that the library refused; why stands in what it writes to its own log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} failed with status {status}")]
pub(super) struct Failed {
    what: &'static str,
    status: Status,
}

impl Failed {
    /// What was asked for is none.
    pub(super) fn nameless(what: &'static str) -> Self {
        Self { what, status: DONE }
    }
}

impl From<Failed> for std::io::Error {
    fn from(failed: Failed) -> Self {
        Self::other(format!("NIXL: {failed}"))
    }
}

/// What has been loaded, for the life of the process: its threads and hooks do not survive being unloaded.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    by_path: BTreeMap<PathBuf, &'static Library>,
    /// Folders and settings with which a transfer agent was made once.
    pub(super) tried: Vec<(PathBuf, Vec<String>)>,
}

/// What has been loaded so far.
pub(super) fn loaded() -> MutexGuard<'static, Loaded> {
    static LOADED: Mutex<Loaded> = Mutex::new(Loaded { by_path: BTreeMap::new(), tried: Vec::new() });
    LOADED.lock().expect("no thread panics while it loads a library")
}

impl Loaded {
    /// The library in `folder`, or where the system looks when it is empty.
    ///
    /// # Errors
    /// [`Fault::Absent`] and [`Fault::Function`].
    pub(super) fn library(&mut self, folder: &Path) -> Result<&'static Library, Fault> {
        if let Some(library) = self.by_path.get(folder) {
            return Ok(library);
        }
        // SAFETY: the initialisers of the library and of what it is made of run, as its publisher wrote them; whoever
        // names the folder trusts what stands there as much as this program.
        let handle = unsafe { Handle::open(Some(folder.join(FILE)), RTLD_NOW | RTLD_LOCAL) };
        let handle = handle.map_err(|error| Fault::Absent(whole(&error)))?;
        let library: &'static Library = Box::leak(Box::new(Library::find(&handle)?));
        // Not unloaded: the functions are called for as long as the process lives.
        std::mem::forget(handle);
        self.by_path.insert(folder.to_owned(), library);
        Ok(library)
    }
}

/// An error with its causes: the loader's own words stand in the last of them.
fn whole(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |cause| cause.source())
        .fold(error.to_string(), |said, cause| format!("{said}: {cause}"))
}

/// Fails unless the library said that all is well.
pub(super) fn done(what: &'static str, status: Status) -> Result<(), Failed> {
    if status == DONE { Ok(()) } else { Err(Failed { what, status }) }
}

/// Whether a transfer is over; it fails when the library says that it has failed.
pub(super) fn is_over(what: &'static str, status: Status) -> Result<bool, Failed> {
    if status == UNDER_WAY { Ok(false) } else { done(what, status).map(|()| true) }
}

/// Makes an object by a call that stores it.
pub(super) fn made(what: &'static str, make: impl FnOnce(*mut Object) -> Status) -> Result<Object, Failed> {
    let mut object: Object = std::ptr::null_mut();
    done(what, make(&mut object))?;
    if object.is_null() { Err(Failed { what, status: DONE }) } else { Ok(object) }
}

/// The file that a folder is looked through for.
pub(super) const FILE: &str = "libnixl_capi.so";
/// The plugin that moves bytes between processes and hosts.
pub(super) const PLUGIN: &CStr = c"UCX";
/// Memory that the processor sees.
pub(super) const DRAM: c_int = 0;
/// The operation that writes to the other side.
pub(super) const WRITE: c_int = 1;
const DONE: Status = 0;
const UNDER_WAY: Status = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_or_is_another_one_is_a_fault_that_says_so() {
        let folder = std::env::temp_dir().join(format!("hicached-nixl-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let absent = loaded().library(&folder);
        assert!(matches!(&absent, Err(Fault::Absent(why)) if why.contains(FILE)), "{absent:?}");
        std::fs::write(folder.join(FILE), b"no library").expect("a file");
        let damaged = loaded().library(&folder);
        assert!(matches!(damaged, Err(Fault::Absent(_))), "{damaged:?}");
        // A library that every process has, under the name of this one.
        let maps = std::fs::read_to_string("/proc/self/maps").expect("a map of the process");
        let libc = maps.lines().find_map(|line| line.split_whitespace().last().filter(|path| path.contains("libc.so")));
        std::fs::copy(libc.expect("the C library"), folder.join(FILE)).expect("a copy");
        let other = loaded().library(&folder);
        assert!(matches!(other, Err(Fault::Function("nixl_capi_create_configured_agent"))), "{other:?}");
        std::fs::remove_dir_all(&folder).expect("the folder");
    }
}
