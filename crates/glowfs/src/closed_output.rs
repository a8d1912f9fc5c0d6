//! Whoever reads our output may stop before the end (`glowfs … | head -1`): that is no fault, and nothing to panic about.

/// The exit status of a program that SIGPIPE would have ended.
const PIPE_STATUS: i32 = 141;

/// From now on a `println!` to a closed pipe ends the process quietly. (SIGPIPE stays ignored: a service must survive a peer that
/// is gone.)
pub fn ends_quietly() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload_as_str().unwrap_or_default();
        if text.starts_with("failed printing to std") && text.contains("Broken pipe") {
            std::process::exit(PIPE_STATUS);
        }
        default(info);
    }));
}
