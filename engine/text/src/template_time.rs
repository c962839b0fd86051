//! Date and time for templates that print them.

const DAYS: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
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

/// A point in time in the proleptic Gregorian calendar. The caller supplies it: the library reads no clock
/// and knows no time zone, so that the same input always renders the same prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateTime {
    days: i64,
    seconds: u32,
}

impl TemplateTime {
    /// Creates a time from seconds since 1970-01-01 00:00. Add the zone's offset for local time.
    ///
    /// ```
    /// use nestling_text::TemplateTime;
    ///
    /// let time = TemplateTime::from_unix_seconds(86_400);
    /// assert_eq!(time.to_string(), "1970-01-02T00:00:00Z");
    /// ```
    pub fn from_unix_seconds(seconds: i64) -> Self {
        // Less than a day: it fits.
        let rest = seconds.rem_euclid(86_400) as u32;
        Self { days: seconds.div_euclid(86_400), seconds: rest }
    }

    /// Returns year, month (from 1) and day (from 1), by Howard Hinnant's `civil_from_days`.
    fn date(self) -> (i64, usize, i64) {
        let shifted = self.days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        (year, usize::try_from(month).unwrap_or(1), day)
    }

    /// Formats like Python's `strftime` in the C locale. Only the directives that templates use are
    /// supported.
    pub(super) fn format(self, format: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut characters = format.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                out.push(character);
                continue;
            }
            let mut directive = characters.next();
            let unpadded = directive == Some('-');
            if unpadded {
                directive = characters.next();
            }
            let Some(directive) = directive else { return Err("a lone % at the end".into()) };
            let part =
                self.directive(directive).ok_or(format!("unknown directive %{directive}"))?;
            let part = if unpadded { part.trim_start_matches(['0', ' ']) } else { &part };
            out.push_str(if unpadded && part.is_empty() { "0" } else { part });
        }
        Ok(out)
    }

    fn directive(self, directive: char) -> Option<String> {
        let (year, month, day) = self.date();
        let weekday = usize::try_from((self.days + 3).rem_euclid(7)).ok()?;
        let (hour, minute, second) =
            (self.seconds / 3600, self.seconds / 60 % 60, self.seconds % 60);
        let month_name = MONTHS.get(month.wrapping_sub(1)).copied()?;
        let day_name = DAYS.get(weekday).copied()?;
        Some(match directive {
            'Y' => year.to_string(),
            'y' => format!("{:02}", year.rem_euclid(100)),
            'm' => format!("{month:02}"),
            'd' => format!("{day:02}"),
            'e' => format!("{day:2}"),
            'B' => month_name.into(),
            'b' | 'h' => month_name.get(..3)?.into(),
            'A' => day_name.into(),
            'a' => day_name.get(..3)?.into(),
            'H' => format!("{hour:02}"),
            'I' => format!("{:02}", (hour + 11) % 12 + 1),
            'M' => format!("{minute:02}"),
            'S' => format!("{second:02}"),
            'p' => if hour < 12 { "AM" } else { "PM" }.into(),
            'j' => format!("{:03}", self.day_of_year(year)),
            'F' => format!("{year}-{month:02}-{day:02}"),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'Z' | 'z' => String::new(),
            '%' => "%".into(),
            _ => return None,
        })
    }

    fn day_of_year(self, year: i64) -> i64 {
        let before = year - 1;
        let first = before * 365 + before.div_euclid(4) - before.div_euclid(100)
            + before.div_euclid(400)
            - 719_162;
        self.days - first + 1
    }
}

/// Formats as in ISO 8601: `2026-11-21T04:05:06Z`.
impl std::fmt::Display for TemplateTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ((year, month, day), seconds) = (self.date(), self.seconds);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}
