package egress

import "encoding/binary"

// Rules that more than the lookup speaks of.
const (
	rule6to4  = "6to4 tunnel (RFC 3056, RFC 7526)"
	ruleNAT64 = "NAT64 translation (RFC 6052)"
)

// range4 is one row of the IPv4 table: the first bits of net, and what is said of them.
type range4 struct {
	net   uint32
	bits  uint
	class Class
	rule  string
}

// range6 is one row of the IPv6 table; hi and lo are the halves of the network.
type range6 struct {
	hi, lo uint64
	bits   uint
	class  Class
	rule   string
}

// classify4 takes the first row that holds the address: single hosts and narrow
// ranges stand before the ranges around them. The rows are the IANA IPv4
// special-purpose registry (RFC 6890), the anycast blocks of it that are globally
// reachable but serve nobody's API, multicast, and the metadata services of the clouds.
func classify4(b [4]byte) Verdict {
	a := binary.BigEndian.Uint32(b[:])
	table := [...]range4{
		{0xa9fe_a900, 24, Metadata, "instance metadata of AWS, Azure, Google and others"},
		{0xa9fe_aa00, 24, Metadata, "task credentials of AWS ECS and EKS"},
		{0xa9fe_0017, 32, Metadata, "instance metadata of Tencent"},
		{0xa9fe_2a2a, 32, Metadata, "instance metadata of Scaleway"},
		{0x6464_64c8, 32, Metadata, "instance metadata of Alibaba"},
		{0xc000_00c0, 32, Metadata, "instance metadata of Oracle"},
		{0xa83f_8110, 32, Metadata, "wire server of Azure"},

		{0x0000_0000, 8, Reserved, "this network (RFC 791)"},
		{0xc000_0000, 24, Reserved, "protocol assignments (RFC 6890)"},
		{0xc000_0200, 24, Reserved, "documentation, TEST-NET-1 (RFC 5737)"},
		{0xc01f_c400, 24, Reserved, "AS112 (RFC 7535)"},
		{0xc034_c100, 24, Reserved, "AMT (RFC 7450)"},
		{0xc058_6300, 24, Reserved, "6to4 relay (RFC 7526)"},
		{0xc0af_3000, 24, Reserved, "direct delegation AS112 (RFC 7534)"},
		{0xc612_0000, 15, Reserved, "benchmarking (RFC 2544)"},
		{0xc633_6400, 24, Reserved, "documentation, TEST-NET-2 (RFC 5737)"},
		{0xcb00_7100, 24, Reserved, "documentation, TEST-NET-3 (RFC 5737)"},
		{0xe000_0000, 4, Reserved, "multicast (RFC 5771)"},
		{0xf000_0000, 4, Reserved, "reserved and broadcast (RFC 1112, RFC 919)"},

		{0x7f00_0000, 8, Local, "loopback (RFC 1122)"},
		{0x0a00_0000, 8, Local, "private use (RFC 1918)"},
		{0xac10_0000, 12, Local, "private use (RFC 1918)"},
		{0xc0a8_0000, 16, Local, "private use (RFC 1918)"},
		{0xa9fe_0000, 16, Local, "link-local (RFC 3927)"},
		{0x6440_0000, 10, Local, "shared address space (RFC 6598)"},
	}
	for i := range table {
		if r := &table[i]; (a^r.net)>>(32-r.bits) == 0 {
			return Verdict{r.class, r.rule}
		}
	}
	return Verdict{Public, "global unicast"}
}

// lookup6 is classify4 for IPv6, without a look at embedded IPv4 addresses. What is
// outside 2000::/3 and in no row is reserved: IANA assigns global unicast from there.
func lookup6(b [16]byte) Verdict {
	hi, lo := binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
	table := [...]range6{
		{0xfd00_0ec2 << 32, 0, 32, Metadata, "instance metadata of AWS"},
		{0xfd20_00ce << 32, 0, 32, Metadata, "instance metadata of Google"},
		{0xfd00_0042 << 32, 0x42, 128, Metadata, "instance metadata of Scaleway"},
		{0xfd00_00c1 << 32, 0xa9fe_a9fe, 128, Metadata, "instance metadata of Oracle"},

		{0, 0, 128, Reserved, "unspecified (RFC 4291)"},
		{0, 1, 128, Local, "loopback (RFC 4291)"},
		{0, 0, 96, Reserved, "IPv4-compatible (RFC 4291)"},
		{0, 0xffff << 48, 96, Reserved, "IPv4-translated (RFC 2765)"},
		{0x0064_ff9b << 32, 0, 96, Reserved, ruleNAT64},
		{0x0064_ff9b_0001 << 16, 0, 48, Reserved, "local-use NAT64 (RFC 8215)"},
		{0x0100 << 48, 0, 64, Reserved, "discard only (RFC 6666)"},
		{0x0100_0000_0000_0001, 0, 64, Reserved, "dummy prefix (RFC 9780)"},
		{0x2001 << 48, 0, 32, Reserved, "Teredo tunnel (RFC 4380)"},
		{0x2001 << 48, 0, 23, Reserved, "protocol assignments (RFC 2928)"},
		{0x2001_0db8 << 32, 0, 32, Reserved, "documentation (RFC 3849)"},
		{0x2002 << 48, 0, 16, Reserved, rule6to4},
		{0x2620_004f_8000 << 16, 0, 48, Reserved, "direct delegation AS112 (RFC 7534)"},
		{0x3fff << 48, 0, 20, Reserved, "documentation (RFC 9637)"},
		{0x5f00 << 48, 0, 16, Reserved, "segment routing (RFC 9602)"},
		{0xfc00 << 48, 0, 7, Local, "unique local (RFC 4193)"},
		{0xfe80 << 48, 0, 10, Local, "link-local (RFC 4291)"},
		{0xfec0 << 48, 0, 10, Reserved, "site-local (RFC 3879)"},
		{0xff00 << 48, 0, 8, Reserved, "multicast (RFC 4291)"},

		{0x2000 << 48, 0, 3, Public, "global unicast"},
	}
	for i := range table {
		if r := &table[i]; holds6(hi^r.hi, lo^r.lo, r.bits) {
			return Verdict{r.class, r.rule}
		}
	}
	return Verdict{Reserved, "not global unicast (RFC 4291)"}
}

// holds6 tells whether the first bits of the difference of two addresses are zero.
func holds6(hi, lo uint64, bits uint) bool {
	if bits <= 64 {
		return hi>>(64-bits) == 0
	}
	return hi == 0 && lo>>(128-bits) == 0
}
