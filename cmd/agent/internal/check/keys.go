package check

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/connect"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

func (c *checker) checkClientKeys() {
	paths := c.opts.To.Keys
	ca := c.readBundle("CA_CERT", paths.CA)

	c.pair = c.readKeys("TLS_CERT", keys.Paths{Certificate: paths.Certificate, Key: paths.Key})
	if c.pair != nil {
		c.ok("TLS_CERT", "%s and its key %s", paths.Certificate, paths.Key)
		c.checkClientUsage(c.pair.Certificate.Leaf)
		c.checkIdentity(c.pair.Certificate.Leaf)
		c.checkExpiry("TLS_CERT expiry", c.pair)
	}

	if ca == nil || c.pair == nil {
		return
	}

	files, err := keys.NewFiles(paths, keys.FilesOptions{})
	if err != nil {
		c.failFor("key material", err, broken())
		return
	}

	c.client = files
}

// readBundle checks a file with CAs, and returns nil if it is broken.
func (c *checker) readBundle(name, path string) *keys.Material {
	m := c.readKeys(name, keys.Paths{CA: path})
	if m != nil {
		count := len(m.RootFingerprints)
		c.ok(name, "%s: CA certificates: %d, the last expires %s", path, count, until(m.RootsNotAfter))
	}
	return m
}

func (c *checker) readKeys(name string, paths keys.Paths) *keys.Material {
	files, err := keys.NewFiles(paths, keys.FilesOptions{})
	if err != nil {
		c.failFor(name, err, broken())
		return nil
	}

	status := files.Status()
	if status.Err != nil {
		c.failFor(name, status.Err, broken())
		return nil
	}

	return status.Material
}

func broken() []advice {
	const want = "PEM files that belong together and are valid now"
	isProblem := func(problem keys.Problem) func(error) bool {
		return func(err error) bool { return keys.ProblemOf(err) == problem }
	}
	return []advice{
		{isProblem(keys.ProblemUnreadable), want, "mount the Secret, and allow the user of the agent to read it"},
		{isProblem(keys.ProblemMismatch), want, "take certificate and key of one Secret"},
		{isProblem(keys.ProblemExpired), want, "renew it: check cert-manager"},
		{isProblem(keys.ProblemNotYetValid), want, "check the clock of the node, and that of the issuer"},
		{isAny, want, "write the whole file in PEM"},
	}
}

func (c *checker) checkClientUsage(leaf *x509.Certificate) {
	const name = "TLS_CERT usage"
	if connect.Allows(leaf, x509.ExtKeyUsageClientAuth) {
		c.ok(name, "the extended key usage allows clientAuth")
		return
	}
	c.fail(name, "extended key usage (EKU) without clientAuth", "clientAuth, or none",
		`issue the certificate with the usage "client auth"`)
}

// checkIdentity checks the names. The registered domain is not known here, so the heartbeat shows
// whether a listener accepts them.
func (c *checker) checkIdentity(leaf *x509.Certificate) {
	const name = "TLS_CERT names"
	id := core.RuntimeID(leaf.Subject.CommonName)
	switch {
	case id == "":
		c.fail(name, "no Common Name (CN)", "the id of this runtime as Common Name",
			"issue the certificate with the name of the runtime in the control plane")
	case len(names(leaf)) == 0:
		c.warn(name, fmt.Sprintf("Common Name %q without a subject alternative name (SAN)", id),
			"the domain of this runtime in the control plane",
			"SAN pinning refuses it: issue the certificate with that DNS name")
	default:
		c.ok(name, "runtime %q, SAN %s", id, strings.Join(names(leaf), " "))
	}
}

func names(leaf *x509.Certificate) []string {
	all := slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		all = append(all, ip.String())
	}

	for _, uri := range leaf.URIs {
		all = append(all, uri.String())
	}
	return all
}

// A certificate expires soon when less than expiringWithin and less than 1/expiringPart of its life
// are left. These are the defaults of the fleet for certificate_expiring.
const (
	expiringWithin = 24 * time.Hour
	expiringPart   = 6
)

func (c *checker) checkExpiry(name string, m *keys.Material) {
	left := time.Until(m.NotAfter)
	if left > min(expiringWithin, m.NotAfter.Sub(m.NotBefore)/expiringPart) {
		c.ok(name, "expires %s", until(m.NotAfter))
		return
	}
	c.warn(name, "expires "+until(m.NotAfter), "a renewed certificate by now", "check cert-manager")
}

func until(t time.Time) string {
	const day = 24 * time.Hour

	left := time.Until(t)
	if left > 2*day {
		return fmt.Sprintf("%s, in %d days", t.UTC().Format(time.RFC3339), left/day)
	}

	return fmt.Sprintf("%s, in %s", t.UTC().Format(time.RFC3339), left.Round(time.Minute))
}

// checkServingKeys checks the certificate of the webhook. By default, this is the client
// certificate.
func (c *checker) checkServingKeys() {
	const name, shared = "WEBHOOK_TLS_CERT", "TLS_CERT as server"
	paths := c.opts.Webhook.Keys
	switch {
	case paths != keys.Paths{}:
		if m := c.readKeys(name, paths); m != nil {
			c.checkServing(name, m)
		}
	case c.pair == nil:
		c.skip("the certificate cannot be read", shared)
	default:
		c.checkServing(shared, c.pair)
	}
}

func (c *checker) checkServing(name string, m *keys.Material) {
	leaf := m.Certificate.Leaf
	if faults := connect.ServingFaults(leaf); len(faults) > 0 {
		c.fail(name, strings.Join(faults, "; "), "a certificate that API servers accept",
			`issue it with the usage "server auth" and the DNS name <service>.<namespace>.svc, or set WEBHOOK_TLS_CERT`)
		return
	}

	c.ok(name, "SAN %s: one of them must be <service>.<namespace>.svc of the agent", strings.Join(names(leaf), " "))
	if name == "WEBHOOK_TLS_CERT" {
		c.checkExpiry(name+" expiry", m)
	}
}
