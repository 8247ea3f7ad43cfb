//! Which addresses the controller never contacts, whatever name led to them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is refused (contract 13.1 and 17.5). Private ranges are in no class: source servers, Prometheus and
/// gates live there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AddressClass {
    /// `127.0.0.0/8` and `::1` (RFC 1122, RFC 4291). The only class that `Policy::allow_loopback` opens.
    Loopback,
    /// `169.254.0.0/16` and `fe80::/10` (RFC 3927, RFC 4291); most clouds serve instance credentials here.
    LinkLocal,
    /// `224.0.0.0/4` and `ff00::/8`.
    Multicast,
    /// `0.0.0.0/8` and `::`; several systems route them to the local machine.
    Unspecified,
    /// `255.255.255.255`.
    Broadcast,
    /// A cloud metadata endpoint outside the link-local range.
    Metadata,
    /// `fec0::/10`, deprecated by RFC 3879 yet still routed by some systems.
    SiteLocal,
    /// An IPv6 transition form (NAT64, 6to4, Teredo, ISATAP, IPv4-compatible) around a forbidden IPv4 address.
    Embedded,
}

impl fmt::Display for AddressClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "a loopback address",
            Self::LinkLocal => "a link-local address (cloud metadata lives there)",
            Self::Multicast => "a multicast address",
            Self::Unspecified => "an unspecified address",
            Self::Broadcast => "the broadcast address",
            Self::Metadata => "a cloud metadata address",
            Self::SiteLocal => "a site-local address",
            Self::Embedded => "an IPv6 form that embeds a forbidden IPv4 address",
        })
    }
}

/// Alibaba Cloud, Azure's wire server, Oracle Cloud.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];

/// AWS, Google Cloud.
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// The class that forbids `address`, or `None` where it may be contacted.
#[must_use]
pub fn classify(address: IpAddr) -> Option<AddressClass> {
    match address {
        IpAddr::V4(v4) => classify_v4(v4),
        IpAddr::V6(v6) => classify_v6(v6),
    }
}

fn classify_v4(address: Ipv4Addr) -> Option<AddressClass> {
    if address.is_loopback() {
        Some(AddressClass::Loopback)
    } else if address.is_link_local() {
        Some(AddressClass::LinkLocal)
    } else if address.is_multicast() {
        Some(AddressClass::Multicast)
    } else if address.octets()[0] == 0 {
        Some(AddressClass::Unspecified)
    } else if address.is_broadcast() {
        Some(AddressClass::Broadcast)
    } else if METADATA_V4.contains(&address) {
        Some(AddressClass::Metadata)
    } else {
        None
    }
}

fn classify_v6(address: Ipv6Addr) -> Option<AddressClass> {
    if let Some(v4) = address.to_ipv4_mapped() {
        return classify_v4(v4);
    }
    let first = address.segments()[0];
    if address.is_loopback() {
        Some(AddressClass::Loopback)
    } else if address.is_unspecified() {
        Some(AddressClass::Unspecified)
    } else if address.is_multicast() {
        Some(AddressClass::Multicast)
    } else if first & 0xffc0 == 0xfe80 {
        Some(AddressClass::LinkLocal)
    } else if first & 0xffc0 == 0xfec0 {
        Some(AddressClass::SiteLocal)
    } else if METADATA_V6.contains(&address) {
        Some(AddressClass::Metadata)
    } else if embedded_v4(address)
        .into_iter()
        .flatten()
        .any(|v4| classify_v4(v4).is_some())
    {
        Some(AddressClass::Embedded)
    } else {
        None
    }
}

/// The IPv4 addresses a gateway or tunnel would read out of `address`.
fn embedded_v4(address: Ipv6Addr) -> [Option<Ipv4Addr>; 2] {
    let s = address.segments();
    let low = pair(s[6], s[7]);
    match s {
        // IPv4-compatible, RFC 4291 2.5.5.1.
        [0, 0, 0, 0, 0, 0, _, _] => [Some(low), None],
        // IPv4-translated, RFC 2765.
        [0, 0, 0, 0, 0xffff, 0, _, _] => [Some(low), None],
        // NAT64 well-known prefix, RFC 6052.
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] => [Some(low), None],
        // NAT64 local-use prefix, RFC 8215: operators pick a /96 below it, or embed at the /48 itself (RFC 6052 2.2).
        [0x64, 0xff9b, 1, a, b, c, _, _] => {
            let [_, second] = b.to_be_bytes();
            let [third, _] = c.to_be_bytes();
            [Some(low), Some(pair(a, u16::from_be_bytes([second, third])))]
        }
        // 6to4, RFC 3056.
        [0x2002, a, b, ..] => [Some(pair(a, b)), None],
        // Teredo, RFC 4380: the server in clear, the client's address inverted.
        [0x2001, 0, a, b, _, _, c, d] => [Some(pair(a, b)), Some(pair(!c, !d))],
        // ISATAP, RFC 5214.
        [_, _, _, _, 0 | 0x0200, 0x5efe, _, _] => [Some(low), None],
        _ => [None, None],
    }
}

fn pair(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from((u32::from(high) << 16) | u32::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn class(text: &str) -> Option<AddressClass> {
        classify(text.parse().expect("an address"))
    }

    /// Rules: run 12 url
    #[rstest]
    #[case("127.0.0.1", AddressClass::Loopback)]
    #[case("127.255.255.254", AddressClass::Loopback)]
    #[case("::1", AddressClass::Loopback)]
    #[case("::ffff:127.0.0.1", AddressClass::Loopback)]
    #[case("169.254.169.254", AddressClass::LinkLocal)]
    #[case("169.254.0.1", AddressClass::LinkLocal)]
    #[case("::ffff:169.254.169.254", AddressClass::LinkLocal)]
    #[case("fe80::1", AddressClass::LinkLocal)]
    #[case("febf::1", AddressClass::LinkLocal)]
    #[case("224.0.0.1", AddressClass::Multicast)]
    #[case("239.255.255.255", AddressClass::Multicast)]
    #[case("ff02::1", AddressClass::Multicast)]
    #[case("0.0.0.0", AddressClass::Unspecified)]
    #[case("0.1.2.3", AddressClass::Unspecified)]
    #[case("::", AddressClass::Unspecified)]
    #[case("::ffff:0.0.0.0", AddressClass::Unspecified)]
    #[case("255.255.255.255", AddressClass::Broadcast)]
    #[case("100.100.100.200", AddressClass::Metadata)]
    #[case("168.63.129.16", AddressClass::Metadata)]
    #[case("192.0.0.192", AddressClass::Metadata)]
    #[case("fd00:ec2::254", AddressClass::Metadata)]
    #[case("fd20:ce::254", AddressClass::Metadata)]
    #[case("fec0::1", AddressClass::SiteLocal)]
    #[case("::127.0.0.1", AddressClass::Embedded)]
    #[case("::169.254.169.254", AddressClass::Embedded)]
    #[case("::ffff:0:127.0.0.1", AddressClass::Embedded)]
    #[case("64:ff9b::7f00:1", AddressClass::Embedded)]
    #[case("64:ff9b::a9fe:a9fe", AddressClass::Embedded)]
    #[case("64:ff9b:1::a9fe:a9fe", AddressClass::Embedded)]
    #[case("64:ff9b:1:a9fe:00a9:fe00::", AddressClass::Embedded)]
    #[case("2002:7f00:1::", AddressClass::Embedded)]
    #[case("2002:a9fe:a9fe::1", AddressClass::Embedded)]
    #[case("2001:0:7f00:1::", AddressClass::Embedded)]
    #[case("2001:0:808:808:0:0:5601:5601", AddressClass::Embedded)]
    #[case("2001:db8::5efe:7f00:1", AddressClass::Embedded)]
    #[case("2001:db8::200:5efe:7f00:1", AddressClass::Embedded)]
    fn refused(#[case] address: &str, #[case] expected: AddressClass) {
        assert_eq!(class(address), Some(expected));
    }

    #[rstest]
    #[case("10.0.0.1")]
    #[case("172.16.0.1")]
    #[case("192.168.1.1")]
    #[case("100.64.0.1")]
    #[case("126.255.255.255")]
    #[case("128.0.0.1")]
    #[case("169.253.255.255")]
    #[case("169.255.0.1")]
    #[case("223.255.255.255")]
    #[case("8.8.8.8")]
    #[case("fc00::1")]
    #[case("fd12:3456::1")]
    #[case("2001:db8::1")]
    #[case("2606:4700::1111")]
    #[case("::ffff:10.0.0.1")]
    #[case("64:ff9b::808:808")]
    #[case("2002:808:808::1")]
    #[case("fe7f::1")]
    fn allowed(#[case] address: &str) {
        assert_eq!(class(address), None);
    }
}
