//! Opens a model and continues a text, token by token, through the C interface (include/thimble.h).
//!
//!     rustc generate.rs -L FOLDER_OF_LIBTHIMBLE -l thimble
//!     ./generate chat.thimble "Once upon a time"

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr::{null, null_mut};

const OK: c_int = 0;

#[repr(C)]
struct Text {
    data: *const c_char,
    size: usize,
}

#[repr(C)]
struct LastError {
    status: c_int,
    message: *const c_char,
    hint: *const c_char,
    field: *const c_char,
}

type Events = extern "C" fn(user: *mut c_void, json: *const c_char, size: usize) -> c_int;

extern "C" {
    fn thimble_last_error() -> *const LastError;
    fn thimble_open(path: *const c_char, options: *const c_char, model: *mut *mut c_void) -> c_int;
    fn thimble_close(model: *mut c_void) -> c_int;
    fn thimble_encode(
        model: *mut c_void,
        text: *const c_char,
        size: usize,
        special: c_int,
        tokens: *mut i32,
        capacity: usize,
        count: *mut usize,
    ) -> c_int;
    fn thimble_decode(model: *mut c_void, tokens: *const i32, count: usize, special: c_int, text: *mut Text) -> c_int;
    fn thimble_start(model: *mut c_void, slots: u32, session: *mut *mut c_void) -> c_int;
    fn thimble_stop(session: *mut c_void) -> c_int;
    fn thimble_submit(session: *mut c_void, request: *const c_char, size: usize, id: *mut u64) -> c_int;
    fn thimble_run(session: *mut c_void, events: Events, user: *mut c_void) -> c_int;
}

/// The message of the last call that failed.
fn check(status: c_int) -> Result<(), String> {
    if status == OK {
        return Ok(());
    }
    // Safety: the pointers of the last error are valid until this thread's next call.
    let (message, hint) = unsafe {
        let error = &*thimble_last_error();
        (CStr::from_ptr(error.message).to_string_lossy(), CStr::from_ptr(error.hint).to_string_lossy())
    };
    Err(if hint.is_empty() { message.into_owned() } else { format!("{message}\nhint: {hint}") })
}

/// A model that closes itself.
struct Model(*mut c_void);

impl Model {
    fn open(path: &str) -> Result<Model, String> {
        let path = CString::new(path).map_err(|_| "the path contains a NUL")?;
        let mut model = null_mut();
        check(unsafe { thimble_open(path.as_ptr(), null(), &mut model) })?;
        Ok(Model(model))
    }

    fn encode(&self, text: &str) -> Result<Vec<i32>, String> {
        let mut tokens = vec![0; text.len() + 8]; // a byte is at most one token
        let mut count = 0;
        let data = text.as_ptr() as *const c_char;
        check(unsafe { thimble_encode(self.0, data, text.len(), 1, tokens.as_mut_ptr(), tokens.len(), &mut count) })?;
        tokens.truncate(count);
        Ok(tokens)
    }

    fn decode(&self, tokens: &[i32]) -> Result<String, String> {
        let mut text = Text { data: null(), size: 0 };
        check(unsafe { thimble_decode(self.0, tokens.as_ptr(), tokens.len(), 0, &mut text) })?;
        let bytes = unsafe { std::slice::from_raw_parts(text.data as *const u8, text.size) };
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        unsafe { thimble_close(self.0) };
    }
}

/// Prints the events of a step: a JSON array. A real program would parse it.
extern "C" fn show(_user: *mut c_void, json: *const c_char, size: usize) -> c_int {
    let bytes = unsafe { std::slice::from_raw_parts(json as *const u8, size) };
    println!("{}", String::from_utf8_lossy(bytes));
    0
}

fn generate(path: &str, prompt: &str) -> Result<(), String> {
    let model = Model::open(path)?;
    let tokens = model.encode(prompt)?;
    println!("prompt: {}", model.decode(&tokens)?);
    let request = format!("{{\"prompt\": {tokens:?}, \"max_tokens\": 40, \"temperature\": 0}}");

    let mut session = null_mut();
    check(unsafe { thimble_start(model.0, 1, &mut session) })?;
    let mut id = 0;
    let submitted =
        check(unsafe { thimble_submit(session, request.as_ptr() as *const c_char, request.len(), &mut id) });
    let ran = submitted.and_then(|()| check(unsafe { thimble_run(session, show, null_mut()) }));
    unsafe { thimble_stop(session) };
    ran
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.len() != 3 {
        eprintln!("usage: {} MODEL PROMPT", arguments[0]);
        std::process::exit(2);
    }
    if let Err(message) = generate(&arguments[1], &arguments[2]) {
        eprintln!("error: {message}");
        std::process::exit(1);
    }
}
