package installation

import "testing"

// TestAddressOfTheRuntimeComesFirst also covers the port, which the NetworkPolicy of the agent opens.
func TestAddressOfTheRuntimeComesFirst(t *testing.T) {
	installer := &Installer{controlPlane: "kcp.example.com:443"}
	for own, want := range map[string]struct {
		address string
		port    int32
	}{
		"":                       {"kcp.example.com:443", 443},
		"other.example.com:8443": {"other.example.com:8443", 8443},
	} {
		r := &Runtime{ControlPlane: own}
		address := installer.addressFor(r)
		if port, _ := parsePort(address); address != want.address || port != want.port {
			t.Errorf("ControlPlane %q: %s and port %d, want %s and %d", own, address, port, want.address, want.port)
		}
	}
}
