//! Moments: as clients of Ollama's interface read them, and those by which something must have happened.

use jiff::Timestamp;
use std::time::{Duration, Instant};

/// Longer than any server runs, and short enough for every clock.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The moment after `limit` from now. A limit beyond what a clock can tell is a century.
pub fn moment_after(limit: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(limit).unwrap_or_else(|| now + FAR.min(limit))
}

/// Now, in UTC: `2026-11-16T05:44:18.123456Z`.
pub fn timestamp() -> String {
    format!("{:.6}", Timestamp::now())
}

/// A second of UTC: `2026-11-16T05:44:18Z`.
pub fn rfc3339(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_clients_read_them() {
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert!(rfc3339(u64::MAX).starts_with("9999-12-"), "a century that no clock tells");
        let now = timestamp();
        assert!(now.len() == "2026-11-16T05:44:18.123456Z".len() && now.ends_with('Z'), "{now}");
    }
}
