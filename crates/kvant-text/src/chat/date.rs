//! The date as templates ask for it: `strftime_now("%d %b %Y")`.

use jiff::fmt::strtime;
use jiff::{Timestamp, tz::TimeZone};
use minijinja::{Error, ErrorKind};
use std::time::SystemTime;

/// `format` filled in for `now` in UTC, with the directives of C's `strftime`.
pub(super) fn strftime(now: SystemTime, format: &str) -> Result<String, Error> {
    let now = Timestamp::try_from(now).unwrap_or(Timestamp::MAX).to_zoned(TimeZone::UTC);
    strtime::format(format, &now)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
}

#[cfg(test)]
mod tests {
    use super::strftime;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn directives() {
        let at = UNIX_EPOCH + Duration::from_secs(1_721_953_805);
        let format = "%d %b %Y|%A %a %B %e %y %m %F %T %I%p %H:%M:%S %Z 100%%";
        let expected = "26 Jul 2024|Friday Fri July 26 24 07 2024-07-26 00:30:05 12AM 00:30:05 UTC 100%";
        assert_eq!(strftime(at, format).unwrap(), expected);
        assert!(strftime(at, "%K").unwrap_err().to_string().contains("`K`"));
        assert!(strftime(at, "%").is_err());
        // A width is a byte: no format makes a long text of a short one.
        assert!(strftime(at, "%99999999Y").is_err());
    }
}
