//! The hicached command line.

fn main() -> std::process::ExitCode {
    hicached::cli::main()
}
