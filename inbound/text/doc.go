// Package text makes text of servers, files, callers and models safe to show, and
// refuses it where it may not be changed.
//
// Presentation text (descriptions, titles, messages, logs) is cleaned: terminal
// escape sequences, control characters, bidirectional controls and characters
// that cannot be seen go. Semantic text (names, enum members, patterns: whatever a
// program compares) is never rewritten; Check refuses it. What is stored stays as
// it was received: cleaning is for renders, prompts, logs and models.
package text
