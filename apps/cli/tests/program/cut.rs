//! Tests of stores that are truncated while the program has them mapped.

use std::fs::{self, File};
use std::io::{Read, Write as _};
use std::process::Stdio;
use std::time::Duration;

use super::{bundled, program, scratch};

/// Truncation detected before a step is an error; during a step it ends the process. Both messages name the
/// file.
#[test]
fn a_mapped_store_that_is_cut_is_named_whenever_it_happens() {
    let mut ended = 0;
    for delay in 0..8 {
        let path = scratch().join(format!("cut-{delay}.nest"));
        fs::copy(bundled(), &path).unwrap();
        let length = fs::metadata(&path).unwrap().len();
        let mut command = program();
        // A drawn text may end at its first token.
        command.args(["run", "--load-mode", "mmap", "--temp", "0", "-n", "2000"]);
        command.args(["-p", "Once upon a time", "-m"]);
        command.arg(&path).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut [0; 8]).unwrap();
        std::thread::sleep(Duration::from_micros(700 * delay));
        File::options().write(true).open(&path).unwrap().set_len(length / 8).unwrap();
        std::io::copy(&mut out, &mut std::io::sink()).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let code = output.status.code();
        writeln!(std::io::stderr(), "{code:?} {}", said.trim()).unwrap();
        match code {
            // The program finished before the truncation.
            Some(0) => {}
            Some(1 | 3 | 4) => {
                ended += 1;
                assert!(said.contains(&format!("cut-{delay}.nest")), "{said}");
            }
            _ => panic!("{:?}: {said}", output.status),
        }
    }
    assert!(ended > 0, "no run was cut short");
}
