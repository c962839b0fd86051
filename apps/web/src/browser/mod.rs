//! The browser: synchronous requests, synchronous files, further workers, and the types of the module.

mod access_file;
mod calls;
mod http;
mod module;
mod workers;
