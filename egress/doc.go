// Package egress decides what this process may reach and is the one place that opens
// a socket outward. A URL is checked four times, and each check can only refuse:
//
//   - declared: [ParseTarget] reads the text: scheme, credentials, fragment, port, the
//     form of the host, and the address if the host is one.
//   - requested: a client goes to the origin it was made for and to no other.
//   - connected: the name is resolved, every address of the answer is classified, and
//     one bad address refuses them all. The dial is to a classified address, with the
//     name left as TLS server name, and is checked again at the socket.
//   - answered: a redirect is refused unless the caller wants it as a result, and the
//     bytes of one message are bounded.
//
// Proxies named by the environment are never used, only one that the operator set in
// [Options]. The package is a leaf: it imports nothing of this module.
package egress
