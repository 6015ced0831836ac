package egress

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

// ranges is every range of the tables in CIDR form, written apart from them.
func ranges() map[string]Class {
	return map[string]Class{
		"169.254.169.0/24": Metadata, "169.254.170.0/24": Metadata, "169.254.0.23/32": Metadata,
		"169.254.42.42/32": Metadata, "100.100.100.200/32": Metadata, "192.0.0.192/32": Metadata,
		"168.63.129.16/32": Metadata,
		"0.0.0.0/8":        Reserved, "192.0.0.0/24": Reserved, "192.0.2.0/24": Reserved, "192.31.196.0/24": Reserved,
		"192.52.193.0/24": Reserved, "192.88.99.0/24": Reserved, "192.175.48.0/24": Reserved,
		"198.18.0.0/15": Reserved, "198.51.100.0/24": Reserved, "203.0.113.0/24": Reserved,
		"224.0.0.0/4": Reserved, "240.0.0.0/4": Reserved, "255.255.255.255/32": Reserved,
		"127.0.0.0/8": Local, "10.0.0.0/8": Local, "172.16.0.0/12": Local, "192.168.0.0/16": Local,
		"169.254.0.0/16": Local, "100.64.0.0/10": Local,

		"fd00:ec2::/32": Metadata, "fd20:ce::/32": Metadata, "fd00:42::42/128": Metadata,
		"fd00:c1::a9fe:a9fe/128": Metadata,
		"::/128":                 Reserved, "::/96": Reserved, "::ffff:0:0:0/96": Reserved, "64:ff9b:1::/48": Reserved,
		"100::/64": Reserved, "100:0:0:1::/64": Reserved, "2001::/32": Reserved, "2001::/23": Reserved,
		"2001:db8::/32": Reserved, "2002::/16": Reserved, "2620:4f:8000::/48": Reserved, "3fff::/20": Reserved,
		"5f00::/16": Reserved, "fec0::/10": Reserved, "ff00::/8": Reserved,
		"4000::/2": Reserved, "200::/7": Reserved, "e000::/4": Reserved, "fe00::/9": Reserved,
		"::1/128": Local, "fc00::/7": Local, "fe80::/10": Local,

		"1.0.0.0/8": Public, "9.0.0.0/8": Public, "11.0.0.0/8": Public, "100.0.0.0/10": Public, "100.128.0.0/9": Public,
		"126.0.0.0/8": Public, "128.0.0.0/8": Public, "169.253.0.0/16": Public, "169.255.0.0/16": Public,
		"172.0.0.0/12": Public, "172.32.0.0/11": Public, "192.167.0.0/16": Public, "192.169.0.0/16": Public,
		"198.16.0.0/15": Public, "198.20.0.0/14": Public, "223.0.0.0/8": Public, "168.63.129.17/32": Public,
		"2001:200::/23": Public, "2001:db7::/32": Public, "2001:db9::/32": Public, "2003::/16": Public,
		"2600::/12": Public, "3000::/5": Public, "3fff:1000::/20": Public,
	}
}

func TestClassifyEnds(t *testing.T) {
	t.Parallel()
	for text, want := range ranges() {
		p := netip.MustParsePrefix(text)
		first, last := p.Masked().Addr(), lastAddr(p)
		for _, a := range []netip.Addr{first, last} {
			if text == "::/96" && a == first || text == "::/128" {
				continue // unspecified, reserved as well
			}
			if got := Classify(a); got.Class != want || got.Rule == "" {
				t.Errorf("Classify(%v) = %+v, want %v (%s)", a, got, want, text)
			}
			if !a.Is4() {
				continue
			}
			mapped := netip.AddrFrom16(a.As16())
			if got := Classify(mapped); got.Class != want {
				t.Errorf("Classify(%v) = %+v, want %v", mapped, got, want)
			}
			b := a.As4()
			nat64 := want
			if want == Local {
				nat64 = Reserved // nothing is lifted through a translator
			}
			for _, c := range []struct {
				prefix string
				want   Class
			}{{"64:ff9b::", nat64}, {"2002::", tunnelled(want)}, {"::", Reserved}, {"::ffff:0:0:0", Reserved}} {
				e := netip.MustParseAddr(c.prefix).As16()
				at := 12
				if c.prefix == "2002::" {
					at = 2
				}
				copy(e[at:], b[:])
				in := netip.AddrFrom16(e)
				if in == netip.IPv6Loopback() {
					continue
				}
				if got := Classify(in); got.Class != c.want {
					t.Errorf("Classify(%v) = %+v, want %v", in, got, c.want)
				}
			}
		}
	}
}

func tunnelled(c Class) Class {
	if c == Metadata {
		return Metadata
	}
	return Reserved
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Outside a range the neighbours are judged by the rest of the table: for the ranges
// below it says public.
func TestClassifyNeighbours(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16",
		"198.18.0.0/15", "192.0.2.0/24", "203.0.113.0/24", "198.51.100.0/24", "168.63.129.16/32",
		"2001:db8::/32", "2620:4f:8000::/48", "192.88.99.0/24",
	} {
		p := netip.MustParsePrefix(text)
		for _, a := range []netip.Addr{p.Addr().Prev(), lastAddr(p).Next()} {
			if got := Classify(a); got.Class != Public {
				t.Errorf("Classify(%v) = %+v, want public (beside %s)", a, got, text)
			}
		}
	}
}

func TestClassifyForms(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Class{
		"fe80::1%eth0":                   Reserved,
		"2606:4700:4700::1111%eth0":      Reserved,
		"fe80::a9fe:a9fe":                Metadata,
		"fd12:3456::a9fe:a9fe":           Metadata,
		"2001:470:1:2:0:5efe:a00:1":      Reserved, // ISATAP to 10.0.0.1
		"2001:470:1:2:200:5efe:7f00:1":   Reserved,
		"2001:470:1:2:200:5efe:808:808":  Public,
		"2001:470:1:2:0:5eff:a00:1":      Public, // not ISATAP
		"2001:0:808:808:0:0:f5ff:fffe":   Reserved,
		"::ffff:169.254.169.254":         Metadata,
		"64:ff9b::169.254.169.254":       Metadata,
		"2002:a9fe:a9fe::1":              Metadata,
		"2606:4700:4700::1111":           Public,
		"0100:0:0:2::1":                  Reserved,
		"64:ff9b:0:0:0:1:808:808":        Reserved,
		"1::1":                           Reserved,
		"ffff:ffff:ffff:ffff:ffff::ffff": Reserved,
	} {
		if got := Classify(netip.MustParseAddr(text)); got.Class != want {
			t.Errorf("Classify(%s) = %+v, want %v", text, got, want)
		}
	}
	if got := Classify(netip.Addr{}); got.Class != Reserved {
		t.Errorf("Classify(no address) = %+v, want reserved", got)
	}
	if got, want := Class(9).String()+" "+Reserved.String()+" "+Metadata.String()+" "+Local.String()+" "+Public.String(), "unknown reserved metadata local public"; got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
}

// What the standard library knows as special is never public, anywhere in the space.
func TestClassifyAgreesWithNetip(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	public := 0
	for i := range 200_000 {
		var b [16]byte
		for j := range b {
			b[j] = byte(r.Uint32())
		}
		a := netip.AddrFrom16(b)
		if i%2 == 0 {
			a = netip.AddrFrom4([4]byte(b[:4]))
		}
		special := a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() ||
			!a.IsGlobalUnicast()
		got := Classify(a)
		if got.Class == Public {
			public++
		}
		if special && got.Class == Public {
			t.Fatalf("Classify(%v) = %+v, want it refused", a, got)
		}
	}
	if public < 50_000 {
		t.Errorf("%d public of 200000, want most of IPv4 and an eighth of IPv6", public)
	}
}

func BenchmarkClassify(b *testing.B) {
	for _, text := range []string{"93.184.216.34", "10.0.0.1", "169.254.169.254", "2606:4700:4700::1111", "64:ff9b::808:808", "fd00::1"} {
		a := netip.MustParseAddr(text)
		b.Run(text, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = Classify(a)
			}
		})
	}
}
