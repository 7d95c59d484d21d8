//! `haul agent`: the far end of a copy. It speaks to the near end over stdin and stdout, so nothing is printed.

pub fn run() -> i32 {
    haul::api::agent()
}
