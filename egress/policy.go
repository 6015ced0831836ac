package egress

import "net/netip"

// A Class tells what the policy does with an address.
type Class uint8

// The classes, from what is reached freely to what is never reached.
const (
	Reserved Class = iota // never reached: unspecified, multicast, tunnels, documentation and all that is not known to be public
	Metadata              // never reached, whatever was opted into: it hands out credentials of the machine
	Local                 // reached only by a target that names this host and port as local
	Public                // reached
)

// String returns the class as one lower-case word.
func (c Class) String() string {
	switch c {
	case Reserved:
		return "reserved"
	case Metadata:
		return "metadata"
	case Local:
		return "local"
	case Public:
		return "public"
	}
	return "unknown"
}

// A Verdict is the class of an address and the rule that gave it.
type Verdict struct {
	Class Class
	Rule  string // names the range and its source, such as "private use (RFC 1918)"; never the address
}

// Classify returns what the policy says of addr. It is total, and closed: an address
// that no rule knows as public is reserved, and so is one with a zone. An IPv4-mapped
// IPv6 address (RFC 4291 2.5.5.2) is the IPv4 address that it holds, since that is
// what the kernel would connect to.
func Classify(addr netip.Addr) Verdict {
	switch {
	case !addr.IsValid():
		return Verdict{Reserved, "no address"}
	case addr.Zone() != "":
		return Verdict{Reserved, "address with a zone (RFC 4007)"}
	}
	addr = addr.Unmap()
	if addr.Is4() {
		return classify4(addr.As4())
	}
	return classify6(addr.As16())
}

func classify6(b [16]byte) Verdict {
	last := [4]byte(b[12:])
	v := lookup6(b)
	switch v.Rule {
	case ruleNAT64:
		// The answers of a DNS64 resolver for a public IPv4 host keep working. Nothing
		// else is reached through a translator, also not what is opted into.
		switch in := classify4(last); in.Class {
		case Public, Metadata:
			return in
		case Reserved, Local:
			return Verdict{Reserved, ruleNAT64}
		}
	case rule6to4:
		if in := classify4([4]byte(b[2:6])); in.Class == Metadata {
			return in
		}
		return v
	}
	if v.Class == Local {
		// fe80::a9fe:a9fe and its like are how some platforms spell the IPv4 service.
		if in := classify4(last); in.Class == Metadata {
			return in
		}
	}
	if v.Class == Public && isISATAP(b) && classify4(last).Class != Public {
		return Verdict{Reserved, "ISATAP tunnel (RFC 5214)"}
	}
	return v
}

// isISATAP tells whether the interface identifier embeds an IPv4 address as RFC 5214
// 6.1 has it, with or without the universal bit.
func isISATAP(b [16]byte) bool {
	return b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe
}

// isMetadataName tells whether host, in lower case and without a trailing dot, is a
// name that a cloud gives to its metadata service.
func isMetadataName(host string) bool {
	switch host {
	case "metadata", "instance-data", "rancher-metadata",
		"metadata.google.internal", "metadata.goog", "metadata.azure.internal",
		"metadata.tencentyun.com", "instance-data.ec2.internal":
		return true
	}
	return false
}
