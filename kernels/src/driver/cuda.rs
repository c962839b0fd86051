//! A device through CUDA's driver, which is loaded when it is first asked for.

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

/// Something of the driver's, by its address; 0 for nothing.
pub(crate) struct Handle(usize);

impl Handle {
    fn of<T>(raw: *mut T) -> Self {
        Self(raw.expose_provenance())
    }

    /// Something that an emulated device gave a number to.
    pub fn numbered(number: usize) -> Self {
        Self(number)
    }

    /// That number.
    pub fn number(&self) -> usize {
        self.0
    }

    fn raw<T>(&self) -> *mut T {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

/// Memory of the host that the device can read and write.
pub(crate) struct PinnedBytes {
    address: usize,
    len: usize,
}

impl PinnedBytes {
    /// Memory that nobody else has, with contents, until [`PinnedBytes::take`].
    pub fn new(address: usize, len: usize) -> Self {
        Self { address, len }
    }

    /// Where it is, to be given back.
    pub fn take(&mut self) -> usize {
        self.len = 0;
        std::mem::take(&mut self.address)
    }

    pub fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: so many bytes are there, with contents, and this owns them.
        unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance(self.address), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        let start = ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: as in `bytes`, and nobody else has a reference to them.
        unsafe { std::slice::from_raw_parts_mut(start, self.len) }
    }

    /// Some of the bytes, which are there.
    pub fn part(&mut self, start: usize, bytes: usize) -> &mut [u8] {
        &mut self.bytes_mut()[start..start + bytes]
    }
}

/// An open device: its primary context, which other libraries of the process share, and the kernels that
/// were loaded into it.
pub(crate) struct Cuda {
    context: PrimaryContext,
    functions: Mutex<HashMap<Kernel, Loaded>>,
    capability: Version,
    images: KernelImages,
}

/// A device's primary context, held until this is dropped. Flags are left as they are: whoever set them first
/// set them for all, and none is needed here.
struct PrimaryContext {
    device: sys::CUdevice,
    raw: Handle,
}

/// A kernel's function, and the module that it is of.
struct Loaded {
    module: Handle,
    function: Handle,
}

impl PrimaryContext {
    /// # Errors
    /// What the driver refuses.
    fn retain(index: i32) -> Result<Self, CudaError> {
        let (mut device, mut raw) = (0, ptr::null_mut());
        // SAFETY: the driver was started where the device was described; it writes a number.
        check("device", unsafe { sys::cuDeviceGet(&raw mut device, index) })?;
        // SAFETY: the driver writes the address of a context.
        match unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut raw, device) } {
            // Another process has it for itself: nothing that was here is lost.
            answer @ CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => {
                Err(CudaError::Refused { reason: format!("context: {}", told(answer)) })
            }
            answer => check("context", answer).map(|()| Self { device, raw: Handle::of(raw) }),
        }
    }

    /// Does something in this context, and leaves the thread in the one that it was in.
    fn within<T>(&self, act: impl FnOnce() -> Result<T, CudaError>) -> Result<T, CudaError> {
        // SAFETY: the context is held.
        check("context", unsafe { sys::cuCtxPushCurrent_v2(self.raw.raw()) })?;
        let done = act();
        let mut left = ptr::null_mut();
        // SAFETY: it was pushed above; the driver writes its address.
        let popped = unsafe { sys::cuCtxPopCurrent_v2(&raw mut left) };
        let done = done?;
        check("context", popped).map(|()| done)
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        // SAFETY: retained once, where this was made.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// What the driver answered.
///
/// # Errors
/// [`CudaError::Lost`] for what a context does not come back from; [`CudaError::Refused`].
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
            Err(CudaError::Lost { reason: format!("{what}: {}", told(answer)) })
        }
        _ => Err(CudaError::Refused { reason: format!("{what}: {}", told(answer)) }),
    }
}

/// The driver's own words for an answer.
fn told(answer: CUresult) -> String {
    let mut text: *const c_char = ptr::null();
    // SAFETY: the driver writes the address of a text that it keeps, or null.
    let known = unsafe { sys::cuGetErrorString(answer, &raw mut text) };
    if known != CUresult::CUDA_SUCCESS || text.is_null() {
        return format!("{answer:?}");
    }
    // SAFETY: a text of the driver's, which ends with a zero and stays.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    format!("{answer:?}: {}", text.to_string_lossy())
}

fn start_driver() -> Result<Version, CudaDeviceError> {
    // SAFETY: looks for the library and loads it; what is called of it later exists in every version
    // from the oldest that passes below.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaDeviceError::NoDriver);
    }
    let mut version = 0;
    // SAFETY: the driver writes a number; it needs no initialization for that.
    let known = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    if known != CUresult::CUDA_SUCCESS {
        return Err(CudaDeviceError::Driver { reason: told(known) });
    }
    let found = Version::new((version / 1000).unsigned_abs(), (version % 1000 / 10).unsigned_abs());
    if version < DRIVER_VERSION_MIN {
        return Err(CudaDeviceError::OldDriver { found });
    }
    // SAFETY: 0 is the only value that it takes.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_SUCCESS => Ok(found),
        CUresult::CUDA_ERROR_NO_DEVICE => Err(CudaDeviceError::NoneFound),
        answer => Err(CudaDeviceError::Driver { reason: told(answer) }),
    }
}

/// All devices.
///
/// # Errors
/// No driver, or one that does not start.
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
    // SAFETY: the driver writes numbers and at most as many bytes as it is told.
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
        // Default: a device without the attribute has none of what it counts.
        if answer == CUresult::CUDA_SUCCESS { u32::try_from(value).unwrap_or(0) } else { 0 }
    };
    let capability = Version::new(
        number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
        number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
    );
    // In kilohertz and bits; memory transfers twice a clock.
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
    /// # Errors
    /// What the driver refuses.
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

    /// Does something in the context of this device.
    fn within<T>(&self, act: impl FnOnce() -> Result<T, CudaError>) -> Result<T, CudaError> {
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

    /// Gives memory back; what fails has nobody to tell.
    pub fn free(&self, address: Address) {
        // SAFETY: it was allocated here; the driver waits for what still uses it.
        let _ = self.within(|| check("free", unsafe { sys::cuMemFree_v2(address) }));
    }

    pub fn allocate_pinned(
        &self,
        what: &'static str,
        bytes: usize,
    ) -> Result<PinnedBytes, CudaError> {
        self.within(|| {
            let mut start: *mut c_void = ptr::null_mut();
            // Pinned for every context of the process; not write-combined, so that the host reads it at full
            // speed.
            let flags = sys::CU_MEMHOSTALLOC_PORTABLE;
            // SAFETY: the driver writes an address.
            match unsafe { sys::cuMemHostAlloc(&raw mut start, bytes, flags) } {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                    return Err(CudaError::OutOfMemory { what, bytes: bytes as u64 });
                }
                answer => check(what, answer)?,
            }
            // SAFETY: so many bytes were just allocated.
            unsafe { start.cast::<u8>().write_bytes(0, bytes) };
            Ok(PinnedBytes::new(start.expose_provenance(), bytes))
        })
    }

    pub fn free_pinned(&self, bytes: &mut PinnedBytes) {
        let start = ptr::with_exposed_provenance_mut(bytes.take());
        // SAFETY: it was allocated here, and `take` leaves nothing behind.
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
        // SAFETY: made by `stream`; what was given to it is still done.
        let _ = self.within(|| check("stream", unsafe { sys::cuStreamDestroy_v2(stream.raw()) }));
    }

    /// An event, which takes the time only if it is to be asked for it.
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
        // SAFETY: made by `event`.
        let _ = self.within(|| check("event", unsafe { sys::cuEventDestroy_v2(event.raw()) }));
    }

    pub fn record(&self, event: &Handle, stream: &Handle) -> Result<(), CudaError> {
        // SAFETY: both live.
        self.within(|| check("event", unsafe { sys::cuEventRecord(event.raw(), stream.raw()) }))
    }

    pub fn wait_for(&self, stream: &Handle, event: &Handle) -> Result<(), CudaError> {
        self.within(|| {
            // SAFETY: both live.
            let answer = unsafe { sys::cuStreamWaitEvent(stream.raw(), event.raw(), 0) };
            check("event", answer)
        })
    }

    pub fn synchronize(&self, stream: &Handle) -> Result<(), CudaError> {
        // SAFETY: it lives.
        self.within(|| check("wait", unsafe { sys::cuStreamSynchronize(stream.raw()) }))
    }

    pub fn synchronize_event(&self, event: &Handle) -> Result<(), CudaError> {
        // SAFETY: it lives.
        self.within(|| check("wait", unsafe { sys::cuEventSynchronize(event.raw()) }))
    }

    /// Milliseconds between two events that take the time and were both waited for.
    pub fn elapsed_ms(&self, start: &Handle, end: &Handle) -> Result<f32, CudaError> {
        self.within(|| {
            let mut milliseconds = 0.0;
            let out = &raw mut milliseconds;
            // SAFETY: both live; the driver writes a number.
            let answer = unsafe { sys::cuEventElapsedTime(out, start.raw(), end.raw()) };
            check("time between events", answer).map(|()| milliseconds)
        })
    }

    /// Whether what was noted is done.
    pub fn is_done(&self, event: &Handle) -> Result<bool, CudaError> {
        // SAFETY: it lives.
        self.within(|| match unsafe { sys::cuEventQuery(event.raw()) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => check("event", answer).map(|()| true),
        })
    }

    pub fn copy_in(&self, stream: &Handle, source: &[u8], to: Address) -> Result<(), CudaError> {
        let (start, bytes) = (source.as_ptr().cast(), source.len());
        // SAFETY: the caller keeps pinned memory as it is until the copy is done, and `to` is in memory
        // that was allocated here.
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
                    // SAFETY: whoever recorded the copy holds the memory until it is done.
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
        // it returns; the addresses in it are those of memory that lives until the commands are done.
        check(launch.kernel.name(), unsafe {
            sys::cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, raw, pointers, none)
        })
    }

    /// Loads all kernels: none is missing or refused later.
    ///
    /// # Errors
    /// [`CudaDeviceError::Kernel`].
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

    /// Loads a kernel.
    fn load(&self, kernel: Kernel) -> Result<Loaded, CudaError> {
        let refused = |reason: String| CudaDeviceError::kernel(kernel.name(), reason);
        let image = self.images.image(kernel, self.capability);
        let image = image.map_err(|error| refused(error.to_string()))?;
        let name = CString::new(kernel.name()).map_err(|error| refused(error.to_string()))?;
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: an image as the compiler made it, which ends with a zero where it is a text; the
        // driver copies it.
        let loaded = unsafe { sys::cuModuleLoadData(&raw mut module, image.as_ptr().cast()) };
        check("module", loaded).map_err(|error| refused(error.to_string()))?;
        // SAFETY: the module was just loaded, and the name ends with a zero.
        let found = unsafe { sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) };
        if let Err(error) = check("function", found) {
            // SAFETY: the module was just loaded, and nothing of it is used.
            let _ = unsafe { sys::cuModuleUnload(module) };
            return Err(refused(error.to_string()).into());
        }
        Ok(Loaded { module: Handle::of(module), function: Handle::of(function) })
    }

    pub fn capture(&self, stream: &Handle, commands: &Commands) -> Result<Handle, CudaError> {
        self.within(|| {
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            // SAFETY: the stream lives.
            check("capture", unsafe { sys::cuStreamBeginCapture_v2(stream.raw(), mode) })?;
            let recorded = self.run(stream, commands);
            let (mut graph, mut ready) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: capture began above; the driver writes an address.
            let ended = unsafe { sys::cuStreamEndCapture(stream.raw(), &raw mut graph) };
            let made = recorded.and(check("capture", ended)).and_then(|()| {
                // SAFETY: the graph was just made; the driver writes an address.
                check("graph", unsafe {
                    sys::cuGraphInstantiateWithFlags(&raw mut ready, graph, 0)
                })
            });
            if !graph.is_null() {
                // SAFETY: the graph was made above, and is not needed once an executable one is.
                let _ = unsafe { sys::cuGraphDestroy(graph) };
            }
            made.map(|()| Handle::of(ready))
        })
    }

    pub fn launch_graph(&self, stream: &Handle, graph: &Handle) -> Result<(), CudaError> {
        // SAFETY: both live, and so does the memory that its commands name: a graph is looked up by
        // them.
        self.within(|| check("graph", unsafe { sys::cuGraphLaunch(graph.raw(), stream.raw()) }))
    }

    pub fn destroy_graph(&self, graph: &Handle) {
        // SAFETY: made by `capture`; a launch of it that is under way is still done.
        let _ = self.within(|| check("graph", unsafe { sys::cuGraphExecDestroy(graph.raw()) }));
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let functions = whole(self.functions.get_mut());
        let modules: Vec<Handle> = functions.drain().map(|(_, loaded)| loaded.module).collect();
        // The context may outlive this, and modules with it.
        let _ = self.within(|| {
            modules.iter().try_for_each(|module| {
                // SAFETY: whoever runs kernels of it holds this too, so nobody does.
                check("module", unsafe { sys::cuModuleUnload(module.raw()) })
            })
        });
    }
}
