//! Moments: as clients of Ollama's interface read them, and those by which something must have happened.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longer than any server runs, and short enough for every clock.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The moment after `limit` from now. A limit beyond what a clock can tell is a century.
pub fn moment_after(limit: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(limit).unwrap_or_else(|| now + FAR.min(limit))
}

/// Now, in UTC: `2026-11-16T05:44:18.123456Z`.
pub fn timestamp() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:06}Z", rfc3339(since.as_secs()), since.subsec_micros())
}

/// A second of UTC without its zone. Years are counted from March, so that the leap day is the last of a year.
pub fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn days_and_leap_days_are_right() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_721_953_805, "2024-07-26T00:30:05"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }
}
