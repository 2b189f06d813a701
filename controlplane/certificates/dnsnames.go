package certificates

import (
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

func checkDNSName(name string) error {
	name = strings.TrimSuffix(name, ".")
	if _, err := netip.ParseAddr(name); err == nil || len(name) > maxDNSName ||
		len(validation.IsDNS1123Subdomain(strings.ToLower(name))) > 0 {
		return fmt.Errorf("want a DNS name, have %.300q", name)
	}
	return nil
}

// canonical is a DNS name as SAN pinning compares it: in lower case, without the dot at its end.
func canonical(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// canonicals keeps the order, because the first name is the Common Name.
func canonicals(dnsNames []string) []string {
	all := make([]string, len(dnsNames))
	for i, name := range dnsNames {
		all[i] = canonical(name)
	}
	return all
}
