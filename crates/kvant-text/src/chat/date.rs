//! The date as templates ask for it: `strftime_now("%d %b %Y")`.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// From the day of the epoch, a Thursday.
const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// `format` filled in for `now` in UTC, with the directives of C's `strftime` that name a date or a time.
pub(super) fn strftime(now: SystemTime, format: &str) -> Result<String, Error> {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let days = seconds / 86_400;
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let month_name = MONTHS[month as usize - 1];
    let weekday = WEEKDAYS[(days % 7) as usize];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let directive = chars.next();
        let written = match directive {
            Some('Y') => write!(out, "{year:04}"),
            Some('y') => write!(out, "{:02}", year % 100),
            Some('m') => write!(out, "{month:02}"),
            Some('d') => write!(out, "{day:02}"),
            Some('e') => write!(out, "{day:2}"),
            Some('B') => out.write_str(month_name),
            Some('b') => out.write_str(&month_name[..3]),
            Some('A') => out.write_str(weekday),
            Some('a') => out.write_str(&weekday[..3]),
            Some('H') => write!(out, "{hour:02}"),
            Some('I') => write!(out, "{:02}", (hour + 11) % 12 + 1),
            Some('M') => write!(out, "{minute:02}"),
            Some('S') => write!(out, "{second:02}"),
            Some('p') => out.write_str(if hour < 12 { "AM" } else { "PM" }),
            Some('F') => write!(out, "{year:04}-{month:02}-{day:02}"),
            Some('T') => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => out.write_str("UTC"),
            Some('%') => out.write_str("%"),
            other => {
                let name = other.map_or_else(String::new, String::from);
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now: directive `%{name}` is not supported"),
                ));
            }
        };
        written.map_err(|_| Error::new(ErrorKind::WriteFailure, "strftime_now"))?;
    }
    Ok(out)
}

/// Year, month and day of the Gregorian calendar, from days since 1970-01-01.
///
/// Years are counted from March, so that the leap day is the last of a year, in eras of 400 years.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::{civil, strftime};
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn the_calendar_agrees_with_counting() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..200_000 {
            assert_eq!(civil(days), (year, month, day));
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match month {
                2 => 28 + u64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > length {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
    }

    #[test]
    fn directives() {
        let at = UNIX_EPOCH + Duration::from_secs(1_721_953_805);
        let format = "%d %b %Y|%A %a %B %e %y %m %F %T %I%p %H:%M:%S %Z 100%%";
        let expected = "26 Jul 2024|Friday Fri July 26 24 07 2024-07-26 00:30:05 12AM 00:30:05 UTC 100%";
        assert_eq!(strftime(at, format).unwrap(), expected);
        assert!(strftime(at, "%Q").unwrap_err().to_string().contains("`%Q`"));
        assert!(strftime(at, "%").is_err());
    }
}
