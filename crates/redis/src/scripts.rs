//! The Lua scripts that decide in Redis: their texts, keys and arguments, and their replies.

mod bucket;
mod bucket_name;
mod call_plan;
pub mod exceptions;
mod records;
mod script_call;
mod script_text;
mod slot_value;

pub use self::bucket_name::{around_actor, tag_length};
pub use self::call_plan::plan_calls;
pub use self::script_call::{make_call, read_outcomes};
pub use self::script_text::window_script;
