//! Compiles the offload's program for this machine.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

/// What is undefined in C traps: in the kernel's programs it would be anything.
const FLAGS: [&str; 12] = [
    "-std=gnu11",
    "-O2",
    "-g",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Werror",
    // Loops are unrolled or not as clang is told to for the kernel.
    "-Wno-unknown-pragmas",
    "-Wno-unused-parameter",
    "-Wno-sign-compare",
    "-fsanitize=undefined",
    "-fsanitize-undefined-trap-on-error",
];

fn main() -> ExitCode {
    match compile() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("flexcp-native: {why}");
            ExitCode::FAILURE
        }
    }
}

fn compile() -> Result<(), String> {
    let directory = |name| env::var_os(name).map(PathBuf::from).ok_or(name);
    let here = directory("CARGO_MANIFEST_DIR")?;
    let out = directory("OUT_DIR")?;
    let kernel = here.join("kernel");
    for sources in [here.join("../../bpf"), kernel.clone(), kernel.join("bpf")] {
        watch(&sources)?;
    }
    println!("cargo::rerun-if-env-changed=CC");
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let object = out.join("native.o");
    let mut cc = Command::new(compiler);
    cc.args(FLAGS).arg("-I").arg(&kernel).arg("-c");
    run(cc.arg(kernel.join("native.c")).arg("-o").arg(&object))?;
    let archive = out.join("libnative.a");
    let _ = fs::remove_file(&archive);
    run(Command::new("ar").arg("crs").arg(&archive).arg(&object))?;
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static=native");
    Ok(())
}

/// Sources and headers, each for itself: objects beside them are none.
fn watch(directory: &Path) -> Result<(), String> {
    let say = |error| format!("{}: {error}", directory.display());
    for entry in fs::read_dir(directory).map_err(say)? {
        let path = entry.map_err(say)?.path();
        if path.extension().is_some_and(|end| end == "c" || end == "h") {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!(
            "{command:?}: {error}; `scripts/setup` installs a C compiler"
        )),
    }
}
