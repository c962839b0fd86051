//! A device accessed through the CUDA driver, which is loaded on first use.

#![expect(unsafe_code, reason = "the driver is a C library")]

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_uint, c_void};
use std::ptr;
use std::sync::Mutex;

use nestling_core::sync::whole;

use cudarc::driver::sys::{self, CUresult};

use super::commands::{Command, Commands};
use super::{Address, MemoryInfo};
use crate::compile::KernelImages;
use crate::devices::{CudaDeviceDescription, CudaDeviceError, DRIVER_VERSION_MIN};
use crate::error::CudaError;
use crate::kernel::Kernel;
use crate::params::Launch;
use crate::version::Version;

/// A driver object, stored as its address, or 0 for none.
pub(crate) struct Handle(usize);

impl Handle {
    fn of<T>(raw: *mut T) -> Self {
        Self(raw.expose_provenance())
    }

    /// Creates a handle from the number of an emulated device's object.
    pub fn numbered(number: usize) -> Self {
        Self(number)
    }

    /// Returns the number of an emulated device's object.
    pub fn number(&self) -> usize {
        self.0
    }

    /// Returns the object's address.
    pub fn raw<T>(&self) -> *mut T {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

/// Host memory that the device can access.
pub(crate) struct PinnedBytes {
    address: usize,
    len: usize,
}

impl PinnedBytes {
    /// Wraps initialized memory with exclusive ownership, until [`PinnedBytes::take`].
    pub fn new(address: usize, len: usize) -> Self {
        Self { address, len }
    }

    /// Returns the address for freeing the memory, and clears the handle.
    pub fn take(&mut self) -> usize {
        self.len = 0;
        std::mem::take(&mut self.address)
    }

    pub fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the memory has `len` initialized bytes, and this value owns it.
        unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance(self.address), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        let start = ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: as in `bytes`, and `&mut self` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(start, self.len) }
    }

    /// Returns a range of the bytes, which must exist.
    pub fn part(&mut self, start: usize, bytes: usize) -> &mut [u8] {
        &mut self.bytes_mut()[start..start + bytes]
    }
}

/// An open device: its primary context, shared with other libraries of the process, and the loaded kernels.
pub(crate) struct Cuda {
    context: PrimaryContext,
    functions: Mutex<HashMap<Kernel, Loaded>>,
    capability: Version,
    images: KernelImages,
}

/// A retained primary context, released on drop. Its flags are not changed: they apply to all users, and none
/// are required here.
struct PrimaryContext {
    device: sys::CUdevice,
    raw: Handle,
}

struct Loaded {
    module: Handle,
    function: Handle,
}

impl PrimaryContext {
    /// Retains the primary context of a device.
    ///
    /// # Errors
    /// Returns an error if the driver refuses a call.
    fn retain(index: i32) -> Result<Self, CudaError> {
        let (mut device, mut raw) = (0, ptr::null_mut());
        // SAFETY: the driver was initialized when the device was described; the call writes a number.
        check("device", unsafe { sys::cuDeviceGet(&raw mut device, index) })?;
        // SAFETY: the driver writes the address of a context.
        match unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut raw, device) } {
            // Another process uses the device exclusively. Nothing is lost, since no context existed.
            answer @ CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => {
                Err(CudaError::Refused { reason: format!("context: {}", error_text(answer)) })
            }
            answer => check("context", answer).map(|()| Self { device, raw: Handle::of(raw) }),
        }
    }

    /// Runs `act` in this context, then restores the thread's previous context.
    fn within<T>(&self, act: impl FnOnce() -> Result<T, CudaError>) -> Result<T, CudaError> {
        // SAFETY: the context is retained.
        check("context", unsafe { sys::cuCtxPushCurrent_v2(self.raw.raw()) })?;
        let done = act();
        let mut left = ptr::null_mut();
        // SAFETY: the context was pushed above; the driver writes its address.
        let popped = unsafe { sys::cuCtxPopCurrent_v2(&raw mut left) };
        let done = done?;
        check("context", popped).map(|()| done)
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        // SAFETY: retained exactly once, on construction.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// Converts a driver result.
///
/// # Errors
/// Fails with [`CudaError::Lost`] for errors that destroy the context, and with [`CudaError::Refused`] for
/// all others.
fn check(what: &'static str, answer: CUresult) -> Result<(), CudaError> {
    use CUresult as Answer;
    match answer {
        Answer::CUDA_SUCCESS => Ok(()),
        Answer::CUDA_ERROR_DEINITIALIZED
        | Answer::CUDA_ERROR_DEVICE_UNAVAILABLE
        | Answer::CUDA_ERROR_ECC_UNCORRECTABLE
        | Answer::CUDA_ERROR_NVLINK_UNCORRECTABLE
        | Answer::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | Answer::CUDA_ERROR_INVALID_CONTEXT
        | Answer::CUDA_ERROR_MPS_RPC_FAILURE
        | Answer::CUDA_ERROR_ILLEGAL_ADDRESS
        | Answer::CUDA_ERROR_LAUNCH_TIMEOUT
        | Answer::CUDA_ERROR_ASSERT
        | Answer::CUDA_ERROR_HARDWARE_STACK_ERROR
        | Answer::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | Answer::CUDA_ERROR_MISALIGNED_ADDRESS
        | Answer::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | Answer::CUDA_ERROR_INVALID_PC
        | Answer::CUDA_ERROR_LAUNCH_FAILED
        | Answer::CUDA_ERROR_UNKNOWN => {
            Err(CudaError::Lost { reason: format!("{what}: {}", error_text(answer)) })
        }
        _ => Err(CudaError::Refused { reason: format!("{what}: {}", error_text(answer)) }),
    }
}

/// Returns the driver's message for a result.
fn error_text(answer: CUresult) -> String {
    let mut text: *const c_char = ptr::null();
    // SAFETY: the driver writes the address of a static text, or null.
    let known = unsafe { sys::cuGetErrorString(answer, &raw mut text) };
    if known != CUresult::CUDA_SUCCESS || text.is_null() {
        return format!("{answer:?}");
    }
    // SAFETY: the driver's text is static and NUL-terminated.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    format!("{answer:?}: {}", text.to_string_lossy())
}

fn start_driver() -> Result<Version, CudaDeviceError> {
    // SAFETY: searches for the library and loads it; all functions called later exist since the minimum
    // version checked below.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaDeviceError::NoDriver);
    }
    let mut version = 0;
    // SAFETY: the driver writes a number; this call requires no initialization.
    let known = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    if known != CUresult::CUDA_SUCCESS {
        return Err(CudaDeviceError::Driver { reason: error_text(known) });
    }
    let found = Version::new((version / 1000).unsigned_abs(), (version % 1000 / 10).unsigned_abs());
    if version < DRIVER_VERSION_MIN {
        return Err(CudaDeviceError::OldDriver { found });
    }
    // SAFETY: 0 is the only valid argument.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_SUCCESS => Ok(found),
        CUresult::CUDA_ERROR_NO_DEVICE => Err(CudaDeviceError::NoneFound),
        answer => Err(CudaDeviceError::Driver { reason: error_text(answer) }),
    }
}

/// Returns all devices.
///
/// # Errors
/// Returns an error if there is no driver or it does not start.
pub(crate) fn list() -> Result<Vec<CudaDeviceDescription>, CudaDeviceError> {
    let driver = start_driver()?;
    let refused = |error: CudaError| CudaDeviceError::Driver { reason: error.to_string() };
    let mut count = 0;
    // SAFETY: the driver writes a number.
    check("count of devices", unsafe { sys::cuDeviceGetCount(&raw mut count) }).map_err(refused)?;
    (0..count).map(|index| describe(index, driver).map_err(refused)).collect()
}

fn describe(index: i32, driver: Version) -> Result<CudaDeviceDescription, CudaError> {
    use sys::CUdevice_attribute as Attribute;
    let (mut device, mut memory_bytes, mut name) = (0, 0, [0 as c_char; 256]);
    // SAFETY: the driver writes numbers, and at most 255 bytes of the name.
    unsafe {
        check("device", sys::cuDeviceGet(&raw mut device, index))?;
        check("memory of a device", sys::cuDeviceTotalMem_v2(&raw mut memory_bytes, device))?;
        check("name of a device", sys::cuDeviceGetName(name.as_mut_ptr(), 255, device))?;
    }
    let name: Vec<u8> = name.iter().map(|c| *c as u8).take_while(|byte| *byte != 0).collect();
    let number = |attribute| {
        let mut value = 0;
        // SAFETY: the driver writes a number.
        let answer = unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) };
        // Default: a device without the attribute has zero of the counted resource.
        if answer == CUresult::CUDA_SUCCESS { u32::try_from(value).unwrap_or(0) } else { 0 }
    };
    let capability = Version::new(
        number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
        number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
    );
    // Clock in kHz and width in bits; memory transfers twice per clock.
    let clock = u64::from(number(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE));
    let width = u64::from(number(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH));
    Ok(CudaDeviceDescription {
        index: index.unsigned_abs() as usize,
        name: String::from_utf8_lossy(&name).into_owned(),
        compute_capability: capability,
        multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        memory_bytes: memory_bytes as u64,
        l2_bytes: number(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE).into(),
        memory_bandwidth: 2 * clock * 1000 * (width / 8),
        driver,
    })
}

impl Cuda {
    /// Opens a device.
    ///
    /// # Errors
    /// Returns an error if the driver refuses a call.
    pub fn open(
        description: &CudaDeviceDescription,
        images: KernelImages,
    ) -> Result<Self, CudaError> {
        let index = i32::try_from(description.index).unwrap_or(i32::MAX);
        Ok(Self {
            context: PrimaryContext::retain(index)?,
            functions: Mutex::default(),
            capability: description.compute_capability,
            images,
        })
    }

    /// Runs `act` in the device's context.
    pub fn within<T>(&self, act: impl FnOnce() -> Result<T, CudaError>) -> Result<T, CudaError> {
        self.context.within(act)
    }

    pub fn memory(&self) -> Result<MemoryInfo, CudaError> {
        self.within(|| {
            let (mut free, mut total) = (0, 0);
            // SAFETY: the driver writes two numbers.
            check("memory", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
            Ok(MemoryInfo { free: free as u64, total: total as u64 })
        })
    }

    pub fn allocate(&self, what: &'static str, bytes: u64) -> Result<Address, CudaError> {
        self.within(|| {
            let mut address = 0;
            let size = usize::try_from(bytes).unwrap_or(usize::MAX);
            // SAFETY: the driver writes an address.
            match unsafe { sys::cuMemAlloc_v2(&raw mut address, size) } {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(CudaError::OutOfMemory { what, bytes }),
                answer => check(what, answer).map(|()| address),
            }
        })
    }

    /// Frees memory. Errors are ignored, because the caller cannot handle them.
    pub fn free(&self, address: Address) {
        // SAFETY: allocated here; the driver waits for pending uses.
        let _ = self.within(|| check("free", unsafe { sys::cuMemFree_v2(address) }));
    }

    pub fn allocate_pinned(
        &self,
        what: &'static str,
        bytes: usize,
    ) -> Result<PinnedBytes, CudaError> {
        self.within(|| {
            let mut start: *mut c_void = ptr::null_mut();
            // Pinned for all contexts of the process. Not write-combined, so that the host can read it at
            // full speed.
            let flags = sys::CU_MEMHOSTALLOC_PORTABLE;
            // SAFETY: the driver writes an address.
            match unsafe { sys::cuMemHostAlloc(&raw mut start, bytes, flags) } {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                    return Err(CudaError::OutOfMemory { what, bytes: bytes as u64 });
                }
                answer => check(what, answer)?,
            }
            // SAFETY: the memory was just allocated with this size.
            unsafe { start.cast::<u8>().write_bytes(0, bytes) };
            Ok(PinnedBytes::new(start.expose_provenance(), bytes))
        })
    }

    pub fn free_pinned(&self, bytes: &mut PinnedBytes) {
        let start = ptr::with_exposed_provenance_mut(bytes.take());
        // SAFETY: allocated here, and `take` cleared the handle.
        let _ = self.within(|| check("free", unsafe { sys::cuMemFreeHost(start) }));
    }

    pub fn stream(&self) -> Result<Handle, CudaError> {
        self.within(|| {
            let mut stream = ptr::null_mut();
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
            // SAFETY: the driver writes an address.
            check("stream", unsafe { sys::cuStreamCreate(&raw mut stream, flags) })?;
            Ok(Handle::of(stream))
        })
    }

    pub fn destroy_stream(&self, stream: &Handle) {
        // SAFETY: created by `stream`; the driver completes pending work.
        let _ = self.within(|| check("stream", unsafe { sys::cuStreamDestroy_v2(stream.raw()) }));
    }

    /// Creates an event. Only a timed event records a timestamp.
    pub fn event(&self, is_timed: bool) -> Result<Handle, CudaError> {
        use sys::CUevent_flags as Flags;
        self.within(|| {
            let mut event = ptr::null_mut();
            let flags =
                if is_timed { Flags::CU_EVENT_DEFAULT } else { Flags::CU_EVENT_DISABLE_TIMING };
            let flags = flags as c_uint;
            // SAFETY: the driver writes an address.
            check("event", unsafe { sys::cuEventCreate(&raw mut event, flags) })?;
            Ok(Handle::of(event))
        })
    }

    pub fn destroy_event(&self, event: &Handle) {
        // SAFETY: created by `event`.
        let _ = self.within(|| check("event", unsafe { sys::cuEventDestroy_v2(event.raw()) }));
    }

    pub fn record(&self, event: &Handle, stream: &Handle) -> Result<(), CudaError> {
        // SAFETY: both objects are alive.
        self.within(|| check("event", unsafe { sys::cuEventRecord(event.raw(), stream.raw()) }))
    }

    pub fn wait_for(&self, stream: &Handle, event: &Handle) -> Result<(), CudaError> {
        self.within(|| {
            // SAFETY: both objects are alive.
            let answer = unsafe { sys::cuStreamWaitEvent(stream.raw(), event.raw(), 0) };
            check("event", answer)
        })
    }

    pub fn synchronize(&self, stream: &Handle) -> Result<(), CudaError> {
        // SAFETY: the stream is alive.
        self.within(|| check("wait", unsafe { sys::cuStreamSynchronize(stream.raw()) }))
    }

    pub fn synchronize_event(&self, event: &Handle) -> Result<(), CudaError> {
        // SAFETY: the event is alive.
        self.within(|| check("wait", unsafe { sys::cuEventSynchronize(event.raw()) }))
    }

    /// Returns the milliseconds between two completed timed events.
    pub fn elapsed_ms(&self, start: &Handle, end: &Handle) -> Result<f32, CudaError> {
        self.within(|| {
            let mut milliseconds = 0.0;
            let out = &raw mut milliseconds;
            // SAFETY: both objects are alive; the driver writes a number.
            let answer = unsafe { sys::cuEventElapsedTime(out, start.raw(), end.raw()) };
            check("time between events", answer).map(|()| milliseconds)
        })
    }

    /// Returns whether the work before the event is complete.
    pub fn is_done(&self, event: &Handle) -> Result<bool, CudaError> {
        // SAFETY: the event is alive.
        self.within(|| match unsafe { sys::cuEventQuery(event.raw()) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => check("event", answer).map(|()| true),
        })
    }

    pub fn copy_in(&self, stream: &Handle, source: &[u8], to: Address) -> Result<(), CudaError> {
        let (start, bytes) = (source.as_ptr().cast(), source.len());
        // SAFETY: the caller keeps the pinned memory unchanged until the copy completes, and `to` is in
        // memory allocated here.
        let copy = || unsafe { sys::cuMemcpyHtoDAsync_v2(to, start, bytes, stream.raw()) };
        self.within(|| check("copy to the device", copy()))
    }

    pub fn copy_out(&self, stream: &Handle, from: Address, to: &mut [u8]) -> Result<(), CudaError> {
        let (start, bytes) = (to.as_mut_ptr().cast(), to.len());
        // SAFETY: as in `copy_in`.
        let copy = || unsafe { sys::cuMemcpyDtoHAsync_v2(start, from, bytes, stream.raw()) };
        self.within(|| check("copy from the device", copy()))
    }

    pub fn run(&self, stream: &Handle, commands: &Commands) -> Result<(), CudaError> {
        self.within(|| {
            commands.list().iter().try_for_each(|command| match *command {
                Command::Launch(launch, params, miss_flag) => {
                    self.launch(stream, &launch, commands.params(params), miss_flag)
                }
                Command::Copy { from, to, bytes } => {
                    let size = bytes as usize;
                    // SAFETY: the recorder of the copy keeps the memory alive until the copy completes.
                    let answer = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, size, stream.raw()) };
                    check("copy", answer)
                }
            })
        })
    }

    fn launch(
        &self,
        stream: &Handle,
        launch: &Launch,
        params: &[u8],
        mut miss_flag: Address,
    ) -> Result<(), CudaError> {
        let function = self.function(launch.kernel)?;
        let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
        let shared = launch.shared_bytes;
        let mut pointers =
            [params.as_ptr().cast_mut().cast::<c_void>(), (&raw mut miss_flag).cast()];
        let (pointers, none) = (pointers.as_mut_ptr(), ptr::null_mut());
        let raw = stream.raw();
        // SAFETY: the kernel takes one struct and one address by value, which the driver copies before
        // returning; addresses in the struct refer to memory that outlives the commands.
        check(launch.kernel.name(), unsafe {
            sys::cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, raw, pointers, none)
        })
    }

    /// Loads all kernels, so that later launches cannot fail because of a missing kernel.
    ///
    /// # Errors
    /// Fails with [`CudaDeviceError::Kernel`].
    pub fn load_all(&self) -> Result<(), CudaError> {
        self.within(|| Kernel::ALL.iter().try_for_each(|kernel| self.function(*kernel).map(drop)))
    }

    fn function(&self, kernel: Kernel) -> Result<sys::CUfunction, CudaError> {
        let mut functions = whole(self.functions.lock());
        if let Some(loaded) = functions.get(&kernel) {
            return Ok(loaded.function.raw());
        }
        let loaded = self.load(kernel)?;
        let raw = loaded.function.raw();
        functions.insert(kernel, loaded);
        Ok(raw)
    }

    fn load(&self, kernel: Kernel) -> Result<Loaded, CudaError> {
        let refused = |reason: String| CudaDeviceError::kernel(kernel.name(), reason);
        let image = self.images.image(kernel, self.capability);
        let image = image.map_err(|error| refused(error.to_string()))?;
        let name = CString::new(kernel.name()).map_err(|error| refused(error.to_string()))?;
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the image is as the compiler wrote it, NUL-terminated if it is text; the driver copies it.
        let loaded = unsafe { sys::cuModuleLoadData(&raw mut module, image.as_ptr().cast()) };
        check("module", loaded).map_err(|error| refused(error.to_string()))?;
        // SAFETY: the module was just loaded, and the name is NUL-terminated.
        let found = unsafe { sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) };
        if let Err(error) = check("function", found) {
            // SAFETY: the module was just loaded and is unused.
            let _ = unsafe { sys::cuModuleUnload(module) };
            return Err(refused(error.to_string()).into());
        }
        Ok(Loaded { module: Handle::of(module), function: Handle::of(function) })
    }

    pub fn capture(&self, stream: &Handle, commands: &Commands) -> Result<Handle, CudaError> {
        self.within(|| {
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            // SAFETY: the stream is alive.
            check("capture", unsafe { sys::cuStreamBeginCapture_v2(stream.raw(), mode) })?;
            let recorded = self.run(stream, commands);
            let (mut graph, mut ready) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: capture started above; the driver writes an address.
            let ended = unsafe { sys::cuStreamEndCapture(stream.raw(), &raw mut graph) };
            let made = recorded.and(check("capture", ended)).and_then(|()| {
                // SAFETY: the graph was just created; the driver writes an address.
                check("graph", unsafe {
                    sys::cuGraphInstantiateWithFlags(&raw mut ready, graph, 0)
                })
            });
            if !graph.is_null() {
                // SAFETY: the graph was created above and is not needed after instantiation.
                let _ = unsafe { sys::cuGraphDestroy(graph) };
            }
            made.map(|()| Handle::of(ready))
        })
    }

    pub fn launch_graph(&self, stream: &Handle, graph: &Handle) -> Result<(), CudaError> {
        // SAFETY: both objects are alive, and so is the memory of the graph's commands, since graphs are
        // looked up by their commands.
        self.within(|| check("graph", unsafe { sys::cuGraphLaunch(graph.raw(), stream.raw()) }))
    }

    pub fn destroy_graph(&self, graph: &Handle) {
        // SAFETY: created by `capture`; the driver completes pending launches.
        let _ = self.within(|| check("graph", unsafe { sys::cuGraphExecDestroy(graph.raw()) }));
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let functions = whole(self.functions.get_mut());
        let modules: Vec<Handle> = functions.drain().map(|(_, loaded)| loaded.module).collect();
        // Modules are unloaded because the context may outlive this value.
        let _ = self.within(|| {
            modules.iter().try_for_each(|module| {
                // SAFETY: running kernels keep this value alive, so none is running.
                check("module", unsafe { sys::cuModuleUnload(module.raw()) })
            })
        });
    }
}
