package inbound

import "time"

// Bounds of what a server may do. None of them has a key but the connect deadlines,
// which a declaration may raise.
const (
	// defaultStdioConnect covers the spawn up to the end of the handshake: the first
	// start of a package runner downloads.
	defaultStdioConnect = 120 * time.Second
	// defaultNetworkConnect covers the dial up to the end of the handshake.
	defaultNetworkConnect = 30 * time.Second
	// discoveryLimit covers the whole walk of tools/list, however many pages it has.
	discoveryLimit = 60 * time.Second
	// callLimit covers one tools/call.
	callLimit = 60 * time.Second
	// maxResultText bounds the text of a result, summed over its parts, in bytes.
	maxResultText = 1 << 20
	// maxServerText bounds what of a server's text is shown in an error, in bytes.
	maxServerText = 2 << 10
)
