package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	requestTimeout = 15 * time.Second
	dialTimeout    = 3 * time.Second
	// callTimeout bounds one call of a client with all its attempts.
	callTimeout = 2 * requestTimeout
)

// NewClient returns a client for a cluster with an administrator that may run a program in place of
// the API server. Use it for configurations that do not come from a kubeconfig, such as the
// configuration from a cloud provider. Without Timeout in the configuration, a request may take 15
// s, and without Dial, a connection attempt 3 s. A call fails after 30 s, including all attempts.
// [NewKubeconfigs] lists the other bounds.
//
// NewClient does not change the configuration. An HTTPClient in opts is an error, because it would
// evade the bounds.
func NewClient(config *rest.Config, opts client.Options) (client.Client, error) {
	if opts.HTTPClient != nil {
		return nil, errors.New("client of a cluster: want no HTTPClient, have one")
	}
	made, _, err := newClient(rest.CopyConfig(config), opts, nil)
	return made, err
}

// newClient changes the configuration. mapper may be nil.
func newClient(config *rest.Config, opts client.Options, mapper newMapper) (client.Client, *http.Client, error) {
	if config.Timeout == 0 {
		config.Timeout = requestTimeout
	}
	if config.Dial == nil {
		config.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	bound(config)

	connected, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, err
	}

	connected = withoutRedirects(connected)
	opts.HTTPClient = connected
	if mapper != nil {
		opts.Mapper, err = mapper(config, connected)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("mapper: %w", err)
	}

	made, err := client.New(config, opts)
	if err != nil {
		return nil, nil, err
	}
	return &guarded{Client: made, ask: asker(config, connected)}, connected, nil
}

// newMapper returns the mapper of a cluster.
type newMapper func(config *rest.Config, client *http.Client) (meta.RESTMapper, error)

// guarded bounds each call in time, and hides errors that only seem to be about an object.
type guarded struct {
	client.Client

	// ask reads a discovery document, such as /apis, into a value.
	ask func(ctx context.Context, path string, into any) error
}

var errSlowCall = errors.New("call to the API server took longer than allowed")

// guardCall makes a call. object has the kind that the call is about.
func (g *guarded) guardCall(ctx context.Context, object runtime.Object, call func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errSlowCall)
	defer cancel()
	err := call(ctx)

	// A proxy answers with 404 and its own page. For a reconciler, NotFound would mean that the
	// object is gone. An API server answers with a page, too, if it does not serve the kind.
	if apierrors.IsNotFound(err) && apierrors.IsUnexpectedServerError(err) {
		unserved := g.checkServed(ctx, object)
		if unserved != nil {
			return unserved
		}
		return strange{err}
	}
	return err
}

// guard makes a call of a subresource, which needs no check of its kind.
func guard(ctx context.Context, call func(ctx context.Context) error) error {
	return (*guarded)(nil).guardCall(ctx, nil, call)
}

// checkServed returns an error if an API server says that it does not serve the kind of an object,
// as after the deletion of its definition. A page of a proxy says nothing.
func (g *guarded) checkServed(ctx context.Context, object runtime.Object) *meta.NoKindMatchError {
	if object == nil {
		return nil
	}

	kind, err := g.GroupVersionKindFor(object)
	isCore := kind.Group == "" // The core group is always served.
	if err != nil || isCore {
		return nil //nolint:nilerr // For a kind that is not known here, the API server was not asked.
	}
	kind.Kind = strings.TrimSuffix(kind.Kind, "List")

	if !g.servesKind(ctx, kind) {
		return &meta.NoKindMatchError{GroupKind: kind.GroupKind(), SearchedVersions: []string{kind.Version}}
	}
	return nil
}

// servesKind is false if an API server answers, and names the kind in neither of its lists.
func (g *guarded) servesKind(ctx context.Context, kind schema.GroupVersionKind) bool {
	var groups metav1.APIGroupList
	if err := g.ask(ctx, "/apis", &groups); err != nil || groups.Kind != "APIGroupList" {
		return true
	}
	hasVersion := func(group metav1.APIGroup) bool { return has(group, kind.GroupVersion()) }
	if !slices.ContainsFunc(groups.Groups, hasVersion) {
		return false
	}

	var resources metav1.APIResourceList
	path := "/apis/" + kind.Group + "/" + kind.Version
	if err := g.ask(ctx, path, &resources); err != nil || resources.Kind != "APIResourceList" {
		return true
	}

	isKind := func(r metav1.APIResource) bool { return r.Kind == kind.Kind }
	return slices.ContainsFunc(resources.APIResources, isKind)
}

func has(group metav1.APIGroup, version schema.GroupVersion) bool {
	return group.Name == version.Group && slices.ContainsFunc(group.Versions,
		func(v metav1.GroupVersionForDiscovery) bool { return v.Version == version.Version })
}

// asker returns a function that reads a document of the API server as JSON, within its budget.
func asker(config *rest.Config, connected *http.Client) func(ctx context.Context, path string, into any) error {
	return func(ctx context.Context, path string, into any) error {
		base, _, err := rest.DefaultServerUrlFor(config)
		if err != nil {
			return err
		}

		plain, query, _ := strings.Cut(path, "?")
		address := base.JoinPath(plain)
		address.RawQuery = query
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), http.NoBody)
		if err != nil {
			return err
		}

		request.Header.Set("Accept", "application/json")

		response, err := connected.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("GET %.200s: status %d", path, response.StatusCode)
		}
		return json.NewDecoder(response.Body).Decode(into)
	}
}

// ReadJSON decodes a document from the API server into a value. The argument path is a path such as
// "/apis/apps/v1/namespaces/a/deployments", optionally with a query. Use ReadJSON for kinds that
// the mapper of the client does not know. An answer other than 200 is an error that names the
// status. The call has the same bounds as all other calls.
func (g *guarded) ReadJSON(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errSlowCall)
	defer cancel()
	return g.ask(ctx, path, into)
}

// strange is an error without the methods of an API status.
type strange struct{ cause error }

func (s strange) Error() string { return "not an answer from an API server: " + s.cause.Error() }

func (g *guarded) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	return g.guardCall(ctx, object, func(ctx context.Context) error { return g.Client.Get(ctx, key, object, opts...) })
}

func (g *guarded) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := g.guardCall(ctx, list, func(ctx context.Context) error { return g.Client.List(ctx, list, opts...) })
	if err != nil {
		return withoutLargeToken(err)
	}
	if size := len(list.GetContinue()); size > longestToken {
		list.SetContinue("")
		return largeToken(size)
	}
	return nil
}

// longestToken bounds the token of the next page in bytes. A caller keeps it, and sends it back in
// the address of a request. That of an API server has a key of etcd, and is below 1 kB.
const longestToken = 8 << 10

func largeToken(size int) error {
	return fmt.Errorf("list has a continue token of %d bytes, want at most %d: %w", size, longestToken, ErrLargeAnswer)
}

// withoutLargeToken replaces an error that offers a token for the next page, after the former one
// has expired.
func withoutLargeToken(err error) error {
	var status apierrors.APIStatus
	if errors.As(err, &status) && len(status.Status().Continue) > longestToken {
		return largeToken(len(status.Status().Continue))
	}
	return err
}

func (g *guarded) Apply(ctx context.Context, object runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	return g.guardCall(ctx, nil, func(ctx context.Context) error { return g.Client.Apply(ctx, object, opts...) })
}

func (g *guarded) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	return g.guardCall(ctx, object, func(ctx context.Context) error { return g.Client.Create(ctx, object, opts...) })
}

func (g *guarded) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	return g.guardCall(ctx, object, func(ctx context.Context) error { return g.Client.Delete(ctx, object, opts...) })
}

func (g *guarded) Update(ctx context.Context, object client.Object, opts ...client.UpdateOption) error {
	return g.guardCall(ctx, object, func(ctx context.Context) error { return g.Client.Update(ctx, object, opts...) })
}

func (g *guarded) Patch(
	ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption,
) error {
	return g.guardCall(ctx, object, func(ctx context.Context) error {
		return g.Client.Patch(ctx, object, patch, opts...)
	})
}

func (g *guarded) DeleteAllOf(ctx context.Context, object client.Object, opts ...client.DeleteAllOfOption) error {
	return g.guardCall(ctx, object, func(ctx context.Context) error {
		return g.Client.DeleteAllOf(ctx, object, opts...)
	})
}

func (g *guarded) Status() client.SubResourceWriter { return g.SubResource("status") }

func (g *guarded) SubResource(name string) client.SubResourceClient {
	return &guardedSub{g.Client.SubResource(name)}
}

type guardedSub struct{ client.SubResourceClient }

func (s *guardedSub) Get(ctx context.Context, object, sub client.Object, opts ...client.SubResourceGetOption) error {
	return guard(ctx, func(ctx context.Context) error { return s.SubResourceClient.Get(ctx, object, sub, opts...) })
}

func (s *guardedSub) Create(
	ctx context.Context, object, sub client.Object, opts ...client.SubResourceCreateOption,
) error {
	return guard(ctx, func(ctx context.Context) error { return s.SubResourceClient.Create(ctx, object, sub, opts...) })
}

func (s *guardedSub) Update(ctx context.Context, object client.Object, opts ...client.SubResourceUpdateOption) error {
	return guard(ctx, func(ctx context.Context) error { return s.SubResourceClient.Update(ctx, object, opts...) })
}

func (s *guardedSub) Patch(
	ctx context.Context, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption,
) error {
	return guard(ctx, func(ctx context.Context) error {
		return s.SubResourceClient.Patch(ctx, object, patch, opts...)
	})
}

func (s *guardedSub) Apply(
	ctx context.Context, object runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption,
) error {
	return guard(ctx, func(ctx context.Context) error { return s.SubResourceClient.Apply(ctx, object, opts...) })
}
