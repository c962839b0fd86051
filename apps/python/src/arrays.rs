//! Arrays that NumPy reads without copying.
#![expect(unsafe_code, reason = "the buffer protocol of Python")]

use std::ffi::{c_int, c_void};

use pyo3::ffi;
use pyo3::prelude::*;

/// An immutable array in Rust memory, exposed as bytes to `numpy.frombuffer`.
#[pyclass(frozen, module = "nestling._core")]
#[derive(Debug)]
pub(crate) struct Array {
    values: Values,
}

#[derive(Debug)]
pub(crate) enum Values {
    U32(Vec<u32>),
    F32(Vec<f32>),
}

impl From<Vec<u32>> for Array {
    fn from(values: Vec<u32>) -> Self {
        Self { values: Values::U32(values) }
    }
}

impl From<Vec<f32>> for Array {
    fn from(values: Vec<f32>) -> Self {
        Self { values: Values::F32(values) }
    }
}

#[pymethods]
impl Array {
    fn __len__(&self) -> usize {
        match &self.values {
            Values::U32(values) => values.len(),
            Values::F32(values) => values.len(),
        }
    }

    /// Returns the values as a list, for programs without NumPy.
    fn tolist(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(match &self.values {
            Values::U32(values) => values.into_pyobject(py)?.unbind(),
            Values::F32(values) => values.into_pyobject(py)?.unbind(),
        })
    }

    /// # Safety
    /// The interpreter passes a writable `view`.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let (data, bytes) = match &slf.get().values {
            Values::U32(values) => (values.as_ptr().cast::<c_void>(), size_of_val(&values[..])),
            Values::F32(values) => (values.as_ptr().cast::<c_void>(), size_of_val(&values[..])),
        };
        // A `Vec` has at most `isize::MAX` bytes.
        let bytes = bytes as ffi::Py_ssize_t;
        // SAFETY: `view` is writable. The bytes belong to this object, which the view keeps alive and which
        // never changes or frees them before. The view is read-only.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), data.cast_mut(), bytes, 1, flags) };
        match filled {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}
