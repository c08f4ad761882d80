//! The library as engines of other languages see it: a C program over the header, and the Python binding.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The folder that holds the library that was built beside this test.
fn library_folder() -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let folder = test.parent().expect("a folder").to_owned();
    assert!(folder.join("libhicached_kernels.so").is_file(), "no library in {folder:?}");
    folder
}

fn succeeded(what: &str, output: &Output) {
    let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{what}: {said:?}");
}

#[test]
fn a_c_program_gathers_and_is_refused() {
    let (root, library) = (Path::new(env!("CARGO_MANIFEST_DIR")), library_folder());
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gather");
    let built = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o"])
        .arg(&program)
        .arg(root.join("tests/gather.c"))
        .arg("-I")
        .arg(root.join("include"))
        .arg("-L")
        .arg(&library)
        .arg("-lhicached_kernels")
        .output();
    // What links Rust programs is there.
    succeeded("cc", &built.expect("a C compiler"));
    let ran = Command::new(&program).env("LD_LIBRARY_PATH", &library).output();
    succeeded("the program", &ran.expect("a program"));
}

#[test]
fn the_python_binding_gathers_and_raises() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = Command::new("python3")
        .arg(root.join("../clients/python/tests/test_gather.py"))
        .env("PYTHONPATH", root.join("../clients/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("HICACHED_KERNELS", library_folder().join("libhicached_kernels.so"))
        .output();
    match python {
        Ok(ran) => succeeded("python3", &ran),
        Err(error) => {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "python3: {error}");
            println!("skipped: python3: {error}");
        }
    }
}
