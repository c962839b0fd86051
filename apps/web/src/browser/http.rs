//! Range requests with a synchronous `XMLHttpRequest`, which a dedicated worker may use.

use std::ops::Range;

use js_sys::{ArrayBuffer, Reflect, Uint8Array};
use wasm_bindgen::{JsCast, JsValue};
use web_sys::{XmlHttpRequest, XmlHttpRequestResponseType};

use crate::ranges::{Head, RangeError, RangeSource, Reply};

/// A file on a server.
pub struct HttpSource {
    url: String,
}

impl HttpSource {
    pub fn new(url: String) -> Self {
        Self { url }
    }

    fn send(&self, method: &str, range: Option<&Range<u64>>) -> Result<XmlHttpRequest, RangeError> {
        let send = || -> Result<XmlHttpRequest, JsValue> {
            let request = XmlHttpRequest::new()?;
            request.open_with_async(method, &self.url, false)?;
            request.set_response_type(XmlHttpRequestResponseType::Arraybuffer);
            if let Some(range) = range {
                let bytes = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
                request.set_request_header("Range", &bytes)?;
            }
            request.send()?;
            Ok(request)
        };
        send().map_err(|error| self.unreachable(&error))
    }

    fn unreachable(&self, error: &JsValue) -> RangeError {
        RangeError::Unreachable { url: self.url.clone(), reason: describe(error) }
    }
}

impl RangeSource for HttpSource {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn fetch(&mut self, range: &Range<u64>) -> Result<Reply, RangeError> {
        let request = self.send("GET", Some(range))?;
        let read = || -> Result<Reply, JsValue> {
            let body = request.response()?.dyn_into::<ArrayBuffer>()?;
            Ok(Reply {
                status: request.status()?,
                content_range: request.get_response_header("Content-Range")?,
                etag: request.get_response_header("ETag")?,
                body: Uint8Array::new(&body).to_vec(),
            })
        };
        read().map_err(|error| self.unreachable(&error))
    }

    fn head(&mut self) -> Result<Head, RangeError> {
        let request = self.send("HEAD", None)?;
        let read = || -> Result<Head, JsValue> {
            let length = request.get_response_header("Content-Length")?;
            Ok(Head {
                status: request.status()?,
                length: length.and_then(|length| length.parse().ok()),
                etag: request.get_response_header("ETag")?,
            })
        };
        read().map_err(|error| self.unreachable(&error))
    }
}

/// Returns the message of a JavaScript error.
pub fn describe(error: &JsValue) -> String {
    let message = Reflect::get(error, &"message".into()).ok().and_then(|text| text.as_string());
    // Default: a thrown value that is no `Error` is printed.
    message.unwrap_or_else(|| format!("{error:?}"))
}
