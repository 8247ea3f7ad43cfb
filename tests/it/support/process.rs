//! Processes by number: signals, memory and CPU time.

use std::{fs, path::Path, process::Command, time::Duration};

use rustix::process::{Pid, Signal, kill_process};

/// SIGKILL; a process that is already gone is fine.
pub fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

/// SIGTERM, the polite end.
pub fn terminate(pid: u32) {
    signal(pid, Signal::TERM);
}

/// SIGSTOP: the process stays but does nothing, as one cut off from its CPU.
pub fn freeze(pid: u32) {
    signal(pid, Signal::STOP);
}

/// SIGCONT after [`freeze`].
pub fn thaw(pid: u32) {
    signal(pid, Signal::CONT);
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Resident memory in KiB, by `VmRSS` of `/proc`; 0 for a process that is gone.
pub fn rss_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|kib| kib.parse().ok())
        .unwrap_or(0)
}

/// CPU time spent so far, user and system, in the kernel's usual ticks of 10 ms.
pub fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The command in brackets may hold blanks; the fields after it are counted from 3.
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().collect())
        .unwrap_or_default();
    let ticks: u64 = [11, 12]
        .iter()
        .filter_map(|&i| fields.get(i)?.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 10)
}

/// Runs a command to its end and gives its standard output; a failure shows both streams.
pub fn run(command: &mut Command) -> Result<String, String> {
    let line = format!("{command:?}");
    let output = command.output().map_err(|e| format!("{line}: {e}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    Err(format!(
        "{line}: {}\n{stdout}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    ))
}

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Ports this process has handed out, so that no two controllers of it get the same.
static GIVEN: std::sync::Mutex<std::collections::BTreeSet<u16>> =
    std::sync::Mutex::new(std::collections::BTreeSet::new());

/// A loopback port nothing listens on right now, never given twice to one test process.
pub fn free_port() -> u16 {
    for _ in 0..1000 {
        // Below the range the kernel takes for outgoing connections, above what testenv prefers.
        let candidate = rand::random_range(13_000..19_999);
        let fresh = GIVEN
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .insert(candidate);
        if fresh && std::net::TcpListener::bind(("127.0.0.1", candidate)).is_ok() {
            return candidate;
        }
    }
    panic!("no free loopback port between 13000 and 19999");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_cpu_time_of_this_process_are_read() {
        let pid = std::process::id();
        assert!(rss_kib(pid) > 1024, "a test process holds more than 1 MiB");
        let before = cpu_time(pid);
        let until = std::time::Instant::now() + Duration::from_millis(80);
        let mut n = 0_u64;
        while std::time::Instant::now() < until {
            n = n.wrapping_mul(31).wrapping_add(7);
        }
        assert!(cpu_time(pid) > before, "spinning costs CPU time ({n})");
    }

    #[test]
    fn a_failing_command_shows_what_it_said() {
        let said = run(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"])).unwrap_err();
        assert!(
            said.contains("out") && said.contains("err") && said.contains('3'),
            "{said}"
        );
    }

    #[test]
    fn ports_are_not_given_twice() {
        assert_ne!(free_port(), free_port());
    }
}
