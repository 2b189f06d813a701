package certificates

import (
	"cmp"
	"errors"
	"log/slog"
	"slices"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/material"
	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

const (
	// concurrency is the number of runtimes with calls that do not wait for each other.
	concurrency = 64

	clusterDomain   = "cluster.local"
	shortest        = time.Hour       // that cert-manager accepts
	shortestRenewal = 5 * time.Minute // that cert-manager accepts
)

// Options are the optional settings of [Certificates]. The zero value is the documented default.
type Options struct {
	// Names are the names of the operator, which determine the labels and annotations of all
	// objects. They must equal the Names of the installer. Default: the defaults of [names.Names].
	Names names.Names

	// CAIssuer signs the CAs, which are then intermediate CAs of its PKI. Default: a self-signed
	// Issuer of this package.
	CAIssuer cmmeta.IssuerReference

	// ImportCA is a Secret with an existing CA in tls.crt and its key in tls.key. The first CA is a
	// copy of that CA and is rotated like any other CA, so that no peer has to trust a new CA
	// first. Default: a new CA.
	ImportCA types.NamespacedName
	// AdditionalCAs are Secrets with further CAs for the bundle, in ca.crt. Both sides trust these
	// CAs, which sign nothing here. If a Secret is no longer listed, its CAs are removed from the
	// bundle. Reconcile fails while a listed Secret has no CA. Default: none.
	AdditionalCAs []types.NamespacedName
	// ListenerSecret is the Secret for listeners and gateways. A gateway of Istio reads it in its
	// own namespace. A Secret of another program is taken over if it has the CA of ImportCA in
	// ca.crt, until the first rotation. Default: <name>-listener in the namespace of the other
	// objects.
	ListenerSecret types.NamespacedName

	// CADuration is the lifetime of a CA. The rotation begins 120 days before the CA expires, or in
	// the last third of its lifetime if the lifetime is 120 days or less. Default: 365 days.
	CADuration time.Duration
	// Duration is the lifetime of all other certificates. No certificate may outlive its CA, so
	// Duration must not be longer than the time between the beginning of a rotation and the expiry
	// of the CA. Default: 90 days.
	Duration time.Duration
	// RenewBefore is how long before a certificate expires cert-manager renews it, with a new key.
	// Default: 30 days.
	RenewBefore time.Duration

	// Propagation is the longest time until a changed Secret has reached every listener or gateway.
	// Default: 5 min.
	Propagation time.Duration

	// Service and RuntimeNamespace name the Service of the agent in the runtimes. The webhook's
	// certificate is valid for the DNS names of that Service. RuntimeNamespace must equal the
	// Namespace of the installer. Both default to "runtime-watcher".
	Service          string
	RuntimeNamespace string

	// KeyAlgorithm and KeySize apply to new keys: RSA with 2048, 3072 or 4096 bits, ECDSA with 256
	// or 384 bits, or Ed25519. The keys of existing CAs stay until the CAs are rotated. Default:
	// ECDSA with the smallest size.
	KeyAlgorithm certv1.PrivateKeyAlgorithm
	KeySize      int

	// Recorder gets an Event for the clients' Issuer when a rotation waits for runtimes. Default:
	// none.
	Recorder events.EventRecorder
	// Logger gets a line for each step of a rotation. Default: ctrl.Log.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	o.Names = o.Names.WithDefaults()
	o.KeyAlgorithm = cmp.Or(o.KeyAlgorithm, certv1.ECDSAKeyAlgorithm)
	if sizes := keySizes()[o.KeyAlgorithm]; o.KeySize == 0 && len(sizes) > 0 {
		o.KeySize = sizes[0]
	}
	return option.WithDefaults(o, Options{
		CADuration:       365 * day,
		Duration:         90 * day,
		RenewBefore:      30 * day,
		Propagation:      5 * time.Minute,
		Service:          material.Name,
		RuntimeNamespace: material.Name,
		Logger:           slog.New(logr.ToSlogHandler(log.Log)),
	})
}

func (o Options) validate(server []string) error {
	var wrong []error
	check := func(ok bool, format string, args ...any) {
		wrong = append(wrong, option.Unless(ok, "certificates: options "+format, args...))
	}
	check(o.CADuration > 0, "CADuration %v: want more than 0", o.CADuration)
	invalidNames := o.Names.Validate()
	check(invalidNames == nil, "Names: %w", invalidNames)
	check(o.Duration >= shortest, "Duration %v: want at least %v", o.Duration, shortest)
	check(o.RenewBefore >= shortestRenewal && o.RenewBefore < o.Duration,
		"RenewBefore %v: want %v to less than Duration %v", o.RenewBefore, shortestRenewal, o.Duration)
	rotation, _ := authority{life: o.CADuration}.margins()
	check(o.Duration <= rotation, "Duration %v: want at most %v, before which a CA of CADuration %v is rotated",
		o.Duration, rotation, o.CADuration)
	check(o.Propagation >= time.Millisecond, "Propagation %v: want at least 1ms, or 0 for the default", o.Propagation)
	check(slices.Contains(keySizes()[o.KeyAlgorithm], o.KeySize),
		"KeyAlgorithm %.40q, KeySize %d: want one of %v", o.KeyAlgorithm, o.KeySize, keySizes())

	for option, key := range map[string]types.NamespacedName{"ImportCA": o.ImportCA, "ListenerSecret": o.ListenerSecret} {
		check((key.Name == "") == (key.Namespace == ""), "%s %q: want a namespace and a name", option, key)
	}

	for _, key := range o.AdditionalCAs {
		check(key.Name != "" && key.Namespace != "", "AdditionalCAs %q: want a namespace and a name", key)
	}

	for _, name := range o.serviceNames() {
		err := checkDNSName(name)
		check(err == nil, "Service and RuntimeNamespace: %v", err)
	}

	for _, name := range server {
		err := checkDNSName(name)
		wrong = append(wrong, option.Unless(err == nil, "certificates: DNS name of the server: %w", err))
		// Otherwise, the webhooks could act as the server.
		check(!slices.Contains(o.serviceNames(), canonical(name)),
			"Service and RuntimeNamespace: want a name other than %s of the server", name)
	}

	return errors.Join(wrong...)
}

func (o Options) serviceNames() []string {
	host := o.Service + "." + o.RuntimeNamespace
	return []string{host, host + ".svc", host + ".svc." + clusterDomain}
}

// keySizes are the sizes of FIPS 186-5 and SP 800-131A that cert-manager supports, the smallest
// first.
func keySizes() map[certv1.PrivateKeyAlgorithm][]int {
	return map[certv1.PrivateKeyAlgorithm][]int{
		certv1.RSAKeyAlgorithm:     {2048, 3072, 4096},
		certv1.ECDSAKeyAlgorithm:   {256, 384},
		certv1.Ed25519KeyAlgorithm: {0},
	}
}
