package informer

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

var (
	versionV1   = schema.GroupVersion{Version: "v1"}
	optionTypes = typesOfV1()
	parameters  = runtime.NewParameterCodec(optionTypes)
)

// typesOfV1 has the options and errors that a client of any resource encodes and decodes.
func typesOfV1() *runtime.Scheme {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, versionV1)
	return scheme
}

func newClient(config *rest.Config) (*rest.RESTClient, error) {
	config = rest.CopyConfig(config)
	config.APIPath = "/apis"
	config.GroupVersion = &schema.GroupVersion{}
	config.NegotiatedSerializer = serializer.NewCodecFactory(optionTypes).WithoutConversion()
	config.ContentType = runtime.ContentTypeJSON
	config.AcceptContentTypes = runtime.ContentTypeJSON
	if config.QPS == 0 && config.RateLimiter == nil {
		config.QPS = -1 // No limit: the backoff of each watch bounds its requests.
	}
	if config.UserAgent == "" {
		config.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("informer: client of the API server: %w", err)
	}
	return client, nil
}

// reporter reports a broken event of a watch, after which the objects are listed again.
type reporter struct{}

// AsObject implements [watch.Reporter].
func (reporter) AsObject(err error) runtime.Object {
	return &apierrors.NewGenericServerResponse(http.StatusInternalServerError, "watch", schema.GroupResource{}, "",
		err.Error(), 0, true).ErrStatus
}
