//! Small parts that every grammar here shares: numbers, words, dates.
//!
//! In: bytes of one line. Out: values, or the error that names the part.
//! Invariant: a number has digits only: no sign, no space, no more than fit.

use crate::FtpError;

/// Most digits of a number: those of `u64::MAX`.
pub(crate) const DIGITS_MAX: usize = 20;
/// Most digits of a fraction of a second that are looked at or borne; nanoseconds are the first nine.
pub(crate) const FRACTION_DIGITS_MAX: usize = 32;

/// A decimal number, at most `max`.
pub(crate) fn number(what: &'static str, text: &[u8], max: u64) -> Result<u64, FtpError> {
    if text.is_empty() || text.len() > DIGITS_MAX || !text.iter().all(u8::is_ascii_digit) {
        return Err(FtpError::BadForm { what });
    }
    let mut value = 0_u64;
    for digit in text {
        let next = value.checked_mul(10).and_then(|v| v.checked_add(u64::from(digit - b'0')));
        value = next.filter(|v| *v <= max).ok_or(FtpError::TooMany { what, max })?;
    }
    Ok(value)
}

/// The digits behind a dot as nanoseconds: `7` is seven tenths.
pub(crate) fn fraction(what: &'static str, digits: &[u8]) -> Result<u32, FtpError> {
    if digits.is_empty() || digits.len() > FRACTION_DIGITS_MAX || !digits.iter().all(u8::is_ascii_digit) {
        return Err(FtpError::BadForm { what });
    }
    let padded = digits.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    Ok(padded.fold(0, |nanos, digit| nanos * 10 + u32::from(digit - b'0')))
}

/// `text` without spaces and tabs at both ends.
pub(crate) fn trim(text: &[u8]) -> &[u8] {
    let is_blank = |b: &u8| *b == b' ' || *b == b'\t';
    let start = text.iter().position(|b| !is_blank(b)).unwrap_or(text.len());
    let end = text.iter().rposition(|b| !is_blank(b)).map_or(start, |last| last + 1);
    &text[start..end]
}

/// What stands before and behind the first `byte`.
pub(crate) fn split_at_byte(text: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|b| *b == byte)?;
    Some((&text[..at], &text[at + 1..]))
}

/// The next word and what stands behind it, the blanks before the word left out.
pub(crate) fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = text.iter().position(|b| *b != b' ')?;
    let text = &text[start..];
    let end = text.iter().position(|b| *b == b' ').unwrap_or(text.len());
    Some(text.split_at(end))
}

/// `text` behind `head`, which may be in any case.
pub(crate) fn strip_ignoring_case<'a>(text: &'a [u8], head: &[u8]) -> Option<&'a [u8]> {
    let (front, rest) = text.split_at_checked(head.len())?;
    front.eq_ignore_ascii_case(head).then_some(rest)
}

/// Seconds since 1970 of a moment in UTC, of the years 1 to 9999.
///
/// Source: days from a civil date, as H. Hinnant gives them; the year begins in March.
pub(crate) fn unix_seconds(year: u64, month: u64, day: u64, time: [u64; 3]) -> Option<i64> {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days_max = match month {
        2 => 28 + u64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    let [hour, minute, second] = time;
    // A leap second is the first of the next minute.
    if !(1..=9999).contains(&year) || day == 0 || day > days_max || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (years, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, year_of_era) = (years / 400, years % 400);
    let day_of_year = (153 * months + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = (era * 146_097 + day_of_era) as i64 - 719_468;
    Some(days * 86_400 + (hour * 3_600 + minute * 60 + second) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: dates are days since 1970, each the next of the one before.
    /// Method: a count of days from 1 January of year 1, month by month; two known moments.
    #[test]
    fn dates_follow_each_other() {
        let mut expected = -62_135_596_800_i64;
        for year in 1..=2_800 {
            let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
            for (month, days) in [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31].into_iter().enumerate() {
                let days = if month == 1 && leap { 29 } else { days };
                for day in 1..=days {
                    assert_eq!(unix_seconds(year, month as u64 + 1, day, [0; 3]), Some(expected));
                    expected += 86_400;
                }
                assert_eq!(unix_seconds(year, month as u64 + 1, days + 1, [0; 3]), None);
            }
        }
        assert_eq!(unix_seconds(1970, 1, 1, [0; 3]), Some(0));
        assert_eq!(unix_seconds(2026, 11, 20, [21, 29, 30]), Some(1_795_210_170));
        assert_eq!(unix_seconds(0, 1, 1, [0; 3]), None);
        assert_eq!(unix_seconds(2026, 13, 1, [0; 3]), None);
        assert_eq!(unix_seconds(2026, 1, 1, [24, 0, 0]), None);
    }

    /// Goal: a number is digits that fit, and a fraction is tenths first.
    /// Method: samples at the edges.
    #[test]
    fn numbers_have_digits_only() {
        assert_eq!(number("n", b"18446744073709551615", u64::MAX), Ok(u64::MAX));
        for bad in
            [&b""[..], b"-1", b"+1", b" 1", b"1 ", b"0x1", b"18446744073709551616", b"000000000000000000001"]
        {
            assert!(number("n", bad, u64::MAX).is_err(), "{bad:?}");
        }
        assert_eq!(number("n", b"7", 7), Ok(7));
        assert_eq!(number("n", b"8", 7), Err(FtpError::TooMany { what: "n", max: 7 }));
        assert_eq!(fraction("f", b"7"), Ok(700_000_000));
        assert_eq!(fraction("f", b"0000000019"), Ok(1));
        assert!(fraction("f", b"").is_err());
    }
}
