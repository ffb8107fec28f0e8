//! The files of the page, and a page in one file.

use sha2::{Digest, Sha256};

/// The page.
pub(super) const INDEX: &str = include_str!("page/index.html");
/// Its style.
pub(super) const STYLE: &str = include_str!("page/page.css");
/// Its script, one module.
pub(super) const SCRIPT: &str = concat!(
    include_str!("page/dom.js"),
    include_str!("page/table.js"),
    include_str!("page/fabric.js"),
    include_str!("page/pages.js"),
    include_str!("page/faults.js"),
    include_str!("page/rules.js"),
    include_str!("page/events.js"),
    include_str!("page/main.js"),
);

/// Lines of [`INDEX`] that a page in one file has in another form.
const STYLE_LINE: &str = "<link rel=\"stylesheet\" href=\"page.css\">\n";
const SCRIPT_LINE: &str = "<script type=\"module\" src=\"page.js\"></script>\n";
const META_LINE: &str = "<meta charset=\"utf-8\">\n";

/// The page as one file that shows this JSON. A policy lets a browser execute only this script, and load nothing.
pub(super) fn with_data(json: &str) -> anyhow::Result<String> {
    let mut page = INDEX.to_owned();
    let mut replace = |line: &str, text: String| {
        anyhow::ensure!(
            page.matches(line).count() == 1,
            "the page has not one line {line:?}"
        );
        page = page.replace(line, &text);
        Ok(())
    };
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; img-src data:; base-uri 'none'; form-action 'none'",
        hash(SCRIPT),
        hash(STYLE)
    );
    replace(
        META_LINE,
        format!("{META_LINE}<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n"),
    )?;
    replace(STYLE_LINE, format!("<style>{STYLE}</style>\n"))?;
    // In JSON, `<` is in strings only. So no text ends the element (HTML, 13.1.2).
    let json = json.replace('<', "\\u003c");
    replace(
        SCRIPT_LINE,
        format!(
            "<script type=\"application/json\" id=\"data\">{json}</script>\n<script type=\"module\">{SCRIPT}</script>\n"
        ),
    )?;
    Ok(page)
}

/// The source expression of a text in a policy (Content Security Policy level 3, 2.3.1).
fn hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    format!("sha256-{}", base64(&digest))
}

/// Base64 (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let byte = |place: usize| u32::from(group.get(place).copied().unwrap_or_default());
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for (place, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            let digit = DIGITS.get((word >> shift & 63) as usize).copied();
            let is_padding = place > group.len();
            text.push(match digit {
                Some(digit) if !is_padding => char::from(digit),
                _ => '=',
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        let known = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ];
        for (text, expected) in known {
            assert_eq!(base64(text.as_bytes()), expected);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn data_cannot_end_their_element() {
        let page = with_data(r#"{"source":"</script><script>alert(1)</script>"}"#).unwrap();
        assert_eq!(page.matches("</script>").count(), 2, "{page}");
        assert!(page.contains(r#"{"source":"\u003c/script>\u003cscript>alert(1)\u003c/script>"}"#));
    }

    /// The hash of a script is that of all between its tags, which the script must not end itself.
    #[test]
    fn script_and_style_are_one_element_each() {
        for text in [SCRIPT, STYLE] {
            assert!(text.is_ascii());
            for forbidden in ["</", "<!--", "<script", "\r"] {
                assert!(!text.contains(forbidden), "{forbidden}");
            }
        }
        let script = SCRIPT.replace("http://www.w3.org/2000/svg", "");
        for forbidden in [
            "import ",
            "export ",
            "http:",
            "https:",
            "eval(",
            "innerHTML",
            "style=\"",
        ] {
            assert!(!script.contains(forbidden), "{forbidden}");
        }
    }
}
