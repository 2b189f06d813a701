package installation

import (
	"crypto/x509"
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

const (
	transportHTTPS = "https"
	transportNATS  = "nats"
	// reservedID would get the answers to operators at a NATS server.
	reservedID = "operator"
)

func (o Options) overNATS() bool { return o.Settings[settingTransport] == transportNATS }

// validateTransport refuses settings with which an agent does not start.
func (o Options) validateTransport() []error {
	transport, set := o.Settings[settingTransport]
	if set && transport != transportHTTPS && transport != transportNATS {
		return []error{fmt.Errorf("%s in Settings: want %s or %s, have %.80q",
			settingTransport, transportHTTPS, transportNATS, transport)}
	}
	if !o.overNATS() {
		return nil
	}
	contract, fallback := o.Settings[settingContract], o.Settings[settingFallback]
	return []error{
		option.Unless(contract == "" || contract == "v3", "%s in Settings: want v3 with %s=%s, have %.80q",
			settingContract, settingTransport, transportNATS, contract),
		option.Unless(fallback == "", "%s in Settings: want none with %s=%s, have %.80q",
			settingFallback, settingTransport, transportNATS, fallback),
	}
}

// validateUser refuses a runtime that a NATS server cannot identify.
func (r *Runtime) validateUser(certificate *x509.Certificate) error {
	switch {
	case r.ID == reservedID:
		return fmt.Errorf("%w %q: want another ID with %s=%s, which reserves this one",
			errInvalidRuntime, r.ID, settingTransport, transportNATS)
	case len(certificate.DNSNames) == 0:
		return fmt.Errorf("%w %q: the certificate in its Secret has no DNS name, want the one of its user at the NATS server",
			errInvalidRuntime, r.ID)
	default:
		return nil
	}
}
