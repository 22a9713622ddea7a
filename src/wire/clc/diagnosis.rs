//! Why an end declined.

use std::fmt;

/// The code in a Decline that tells why. Unknown codes are retained.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Diagnosis(pub u32);

macro_rules! codes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl Diagnosis {
            $(
                #[doc = concat!("`", stringify!($code), "`: ", $text, ".")]
                pub const $name: Self = Self($code);
            )*

            /// The codes that have a name, in ascending order.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name of the constant, such as "NO_SMC_DEVICE"; `None` for an unknown code.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self { $(Self::$name => Some(stringify!($name)),)* _ => None }
            }

            /// The meaning in words, such as "no SMC device (R or D)".
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* _ => "unknown reason" }
            }
        }
    };
}

codes! {
    NONE = 0x0000_0000, "no reason given";
    OUT_OF_MEMORY = 0x0101_0000, "out of memory";
    TIMEOUT_CONFIRM_LINK = 0x0201_0000, "timeout waiting for CONFIRM_LINK";
    TIMEOUT_ADD_LINK = 0x0202_0000, "timeout waiting for ADD_LINK";
    CONFIGURATION = 0x0300_0000, "configuration error";
    PEER_NO_SMC = 0x0301_0000, "the peer did not announce SMC";
    IPSEC = 0x0302_0000, "IPsec is in use";
    NO_SMC_DEVICE = 0x0303_0000, "no SMC device (R or D)";
    NO_SMC_D_DEVICE = 0x0303_0001, "no SMC-D device";
    NO_SMC_R_DEVICE = 0x0303_0002, "no SMC-R device";
    NO_ISM_V2 = 0x0303_0003, "no support for ISMv2";
    NO_V2_EXTENSION = 0x0303_0004, "no V2 extension in the Proposal";
    NO_SMC_D_V2_EXTENSION = 0x0303_0005, "no SMC-Dv2 extension in the Proposal";
    NO_SEID = 0x0303_0006, "no system enterprise id";
    NO_SMC_D_V2_DEVICE = 0x0303_0007, "no SMC-Dv2 device";
    NO_UEID = 0x0303_0008, "no user-defined enterprise id in the Proposal";
    RELEASE = 0x0303_0009, "negotiation of the release failed";
    MAX_CONNECTIONS = 0x0303_000a, "negotiation of the number of connections failed";
    MAX_LINKS = 0x0303_000b, "negotiation of the number of links failed";
    MODE_MISMATCH = 0x0304_0000, "the modes do not match";
    RMBE_EYECATCHER = 0x0305_0000, "the peer uses eyecatchers in its RMB";
    SOCKET_OPTION = 0x0306_0000, "a socket option (fast open) is not supported";
    PREFIX_MISMATCH = 0x0307_0000, "IP prefix or subnet mismatch";
    VLAN_GET = 0x0308_0000, "the VLAN id cannot be found";
    VLAN_REGISTER = 0x0309_0000, "the VLAN id cannot be registered";
    NO_ACTIVE_LINK = 0x030a_0000, "no active link in the link group";
    NO_SERVER_LINK = 0x030b_0000, "the link that the server named was not found";
    VERSION_MISMATCH = 0x030c_0000, "version mismatch";
    DMB_LIMIT = 0x030d_0000, "the limit of SMC-D buffers is reached";
    NO_ROUTE = 0x030e_0000, "no route";
    INDIRECT_MISMATCH = 0x030f_0000, "direct and routed access do not match";
    SYNCHRONIZATION = 0x0400_0000, "synchronization error";
    PEER_DECLINED = 0x0500_0000, "the peer declined";
    INTERNAL_ERROR = 0x0999_0000, "internal error";
    RTOKEN = 0x0999_0001, "the token of a remote buffer could not be handled";
    QUEUE_PAIR = 0x0999_0002, "the queue pair could not be made ready";
    BUFFER_REGISTRATION = 0x0999_0003, "a buffer could not be registered";
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x} ({})", self.0, self.text())
    }
}

impl fmt::Debug for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "Diagnosis::{name}"),
            None => write!(f, "Diagnosis({:#010x})", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names_and_texts() {
        let no_device = Diagnosis(0x0303_0000);
        assert_eq!(no_device, Diagnosis::NO_SMC_DEVICE);
        assert_eq!(no_device.name(), Some("NO_SMC_DEVICE"));
        assert_eq!(no_device.to_string(), "0x03030000 (no SMC device (R or D))");
        assert_eq!(format!("{no_device:?}"), "Diagnosis::NO_SMC_DEVICE");
        assert!(Diagnosis::ALL.is_sorted_by_key(|code| code.0));
        assert_eq!(Diagnosis::ALL.len(), 37);
    }

    #[test]
    fn an_unknown_code_is_shown_as_it_is() {
        let unknown = Diagnosis(0x1234_5678);
        assert_eq!((unknown.name(), unknown.text()), (None, "unknown reason"));
        assert_eq!(
            format!("{unknown} {unknown:?}"),
            "0x12345678 (unknown reason) Diagnosis(0x12345678)"
        );
    }
}
