package installation

import "fmt"

// addressFor returns the address that the agents of a runtime send to.
func (i *Installer) addressFor(r *Runtime) string {
	if r.ControlPlane == "" {
		return i.controlPlane
	}
	return r.ControlPlane
}

// portFor returns the port of addressFor. The address was validated.
func (i *Installer) portFor(r *Runtime) int32 {
	port, _ := parsePort(i.addressFor(r))
	return port
}

// validateAddress refuses a runtime without an address for its agents.
func (i *Installer) validateAddress(r *Runtime) error {
	if _, err := parsePort(i.addressFor(r)); err != nil {
		return fmt.Errorf("%w %q: %w", errInvalidRuntime, r.ID, err)
	}
	return nil
}
