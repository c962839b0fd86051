//! Bindings to NVIDIA's compiler (NVRTC), loaded at run time if available.
#![expect(unsafe_code, reason = "the compiler is a C library")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

/// Result of a compilation: the log, and the image or an error.
pub(super) struct Outcome {
    pub log: String,
    pub image: Result<Vec<u8>, String>,
}

/// Output format of a compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImageKind {
    Cubin,
    Ptx,
}

/// A named source text that the compiler includes.
pub(super) struct Include<'a> {
    pub name: &'a str,
    pub text: &'a str,
}

/// Returns the major and minor version of the compiler, or `None` if it is unavailable.
pub(super) fn version() -> Option<(i32, i32)> {
    // SAFETY: searches for a library by its names.
    if !unsafe { sys::is_culib_present() } {
        return None;
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is present, and the call writes two numbers.
    let answer = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    (answer == nvrtcResult::NVRTC_SUCCESS).then_some((major, minor))
}

/// A compiler program, destroyed on drop.
struct Program(nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created by `nvrtcCreateProgram` and not used afterwards.
        unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

fn text(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|error| error.to_string())
}

fn check(what: &str, answer: nvrtcResult) -> Result<(), String> {
    match answer {
        nvrtcResult::NVRTC_SUCCESS => Ok(()),
        other => Err(format!("{what}: {other:?}")),
    }
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

/// Compiles a program. The compiler must be available, as reported by [`version`].
///
/// # Errors
/// Returns an error if the compiler fails before compilation.
pub(super) fn compile(
    program: &Include<'_>,
    includes: &[Include<'_>],
    options: &[String],
    kind: ImageKind,
) -> Result<Outcome, String> {
    let all = |pick: for<'a> fn(&Include<'a>) -> &'a str| {
        includes.iter().map(|include| text(pick(include))).collect::<Result<Vec<_>, _>>()
    };
    let (names, texts) = (all(|include| include.name)?, all(|include| include.text)?);
    let (source, name) = (text(program.text)?, text(program.name)?);
    let options = options.iter().map(|option| text(option)).collect::<Result<Vec<_>, _>>()?;
    let count = |length: usize| c_int::try_from(length).map_err(|error| error.to_string());
    let mut raw = ptr::null_mut();
    let (headers, titles) = (pointers(&texts), pointers(&names));
    let includes = count(includes.len())?;
    // SAFETY: the texts are NUL-terminated and outlive the program; the numbers of headers and names are
    // equal.
    check("program", unsafe {
        sys::nvrtcCreateProgram(
            &mut raw,
            source.as_ptr(),
            name.as_ptr(),
            includes,
            headers.as_ptr(),
            titles.as_ptr(),
        )
    })?;
    let made = Program(raw);
    let list = pointers(&options);
    // SAFETY: the program was just created; the options are as many as stated and outlive the call.
    let answer = unsafe { sys::nvrtcCompileProgram(made.0, count(list.len())?, list.as_ptr()) };
    let log = read(&made, "log", sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog)?;
    let log = CStr::from_bytes_until_nul(&log)
        .map_or(String::new(), |text| text.to_string_lossy().into_owned());
    let image = check("compilation", answer).and_then(|()| match kind {
        ImageKind::Cubin => read(&made, "cubin", sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN),
        ImageKind::Ptx => read(&made, "PTX", sys::nvrtcGetPTXSize, sys::nvrtcGetPTX),
    });
    Ok(Outcome { log, image })
}

type SizeOf = unsafe fn(nvrtcProgram, *mut usize) -> nvrtcResult;
type ReadInto = unsafe fn(nvrtcProgram, *mut c_char) -> nvrtcResult;

/// Reads data of a program after querying its size.
fn read(program: &Program, what: &str, size_of: SizeOf, read: ReadInto) -> Result<Vec<u8>, String> {
    let mut bytes = 0;
    // SAFETY: the program is alive; the call writes one number.
    check(what, unsafe { size_of(program.0, &mut bytes) })?;
    let mut out = vec![0u8; bytes];
    // SAFETY: the call writes exactly the number of bytes queried above.
    check(what, unsafe { read(program.0, out.as_mut_ptr().cast()) })?;
    Ok(out)
}
