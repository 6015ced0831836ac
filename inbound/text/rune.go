package text

// steers reports a character that moves a terminal's cursor or turns the order in
// which text is read: C0 (TAB and LF too), DEL, C1, and the bidirectional controls
// of Unicode 16, chapter 23.
func steers(r rune) bool {
	switch {
	case r < 0x20, r >= 0x7F && r <= 0x9F:
		return true
	case r == 0x061C, r == 0x200E, r == 0x200F, r >= 0x202A && r <= 0x202E, r >= 0x2066 && r <= 0x2069:
		return true
	default:
		return false
	}
}

// unseen reports a character that hides text: it shows as nothing, yet a model
// reads it. ZWNJ, ZWJ and the variation selectors 1 to 16 are not among them, since
// scripts and emoji need them.
func unseen(r rune) bool {
	switch {
	case r < 0xAD:
		return false
	case r == 0xAD, // soft hyphen
		r == 0x034F,              // combining grapheme joiner
		r == 0x115F, r == 0x1160, // Hangul fillers
		r == 0x180E,              // Mongolian vowel separator
		r == 0x200B,              // zero width space
		r == 0x2028, r == 0x2029, // line and paragraph separator
		r >= 0x2060 && r <= 0x2065, // word joiner, invisible operators
		r >= 0x206A && r <= 0x206F, // deprecated format characters
		r == 0x3164, r == 0xFFA0,   // Hangul fillers
		r == 0xFEFF,                  // byte order mark
		r >= 0xFFF9 && r <= 0xFFFB,   // interlinear annotation
		r >= 0x1D173 && r <= 0x1D17A, // musical format characters
		r >= 0xE0000 && r <= 0xE007F, // tags
		r >= 0xE0100 && r <= 0xE01EF: // variation selectors 17 to 256
		return true
	case r&0xFFFE == 0xFFFE, r >= 0xFDD0 && r <= 0xFDEF: // noncharacters
		return true
	default:
		return false
	}
}
