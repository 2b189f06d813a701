package xfcc

import "slices"

// Element is the description of a client by one proxy. Fields that the proxy did not send are
// empty.
type Element struct {
	// By are the URI SANs of the proxy's own certificate.
	By []string
	// Hash is the SHA-256 of the client certificate in hex, as written.
	Hash string
	// Cert is the client certificate, Chain the same with the others of its chain, in
	// percent-encoded PEM.
	Cert, Chain string
	// Subject is the subject of the client certificate (RFC 4514), in which only \" and \\ are
	// unescaped. Its text is the client's choice.
	Subject string
	// URIs and DNS are SANs of the client certificate.
	URIs, DNS []string
}

// builder collects the pairs of one element.
type builder struct {
	element Element
	seen    []string
}

// set keeps the value of a key. It reports false for a second value of a key that may have only
// one.
func (b *builder) set(key, value string) bool {
	if list := b.list(key); list != nil {
		// Proxies write an empty value when a certificate has no such SAN.
		if value != "" {
			*list = append(*list, value)
		}
		return true
	}
	field := b.field(key)
	if field == nil {
		return true // An unknown key: the format can grow.
	}
	if slices.Contains(b.seen, key) {
		return false
	}
	*field, b.seen = value, append(b.seen, key)
	return true
}

func (b *builder) field(key string) *string {
	switch key {
	case "hash":
		return &b.element.Hash
	case "cert":
		return &b.element.Cert
	case "chain":
		return &b.element.Chain
	case "subject":
		return &b.element.Subject
	default:
		return nil
	}
}

func (b *builder) list(key string) *[]string {
	switch key {
	case "by":
		return &b.element.By
	case "uri":
		return &b.element.URIs
	case "dns":
		return &b.element.DNS
	default:
		return nil
	}
}
