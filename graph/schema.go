package graph

import "github.com/muster-cloud/muster/graph/generated"

// Query returns the resolvers of everything that can be read.
func (r *Resolver) Query() generated.QueryResolver { return &queryResolver{r} }

// Mutation returns the resolvers of everything that changes something.
func (r *Resolver) Mutation() generated.MutationResolver { return &mutationResolver{r} }

// Subscription returns the resolvers of everything that can be watched.
func (r *Resolver) Subscription() generated.SubscriptionResolver { return &subscriptionResolver{r} }

// Node returns the resolvers of a node's links and of what is volatile.
func (r *Resolver) Node() generated.NodeResolver { return &nodeResolver{r} }

// Instance returns the resolvers of an instance's links.
func (r *Resolver) Instance() generated.InstanceResolver { return &instanceResolver{r} }

// Service returns the resolvers of a service's links.
func (r *Resolver) Service() generated.ServiceResolver { return &serviceResolver{r} }

// Registration returns the resolvers of an entry of the discovery feed.
func (r *Resolver) Registration() generated.RegistrationResolver { return &registrationResolver{r} }

// Volume returns the resolvers of a volume's links.
func (r *Resolver) Volume() generated.VolumeResolver { return &volumeResolver{r} }

// AccessKey returns the resolvers of what an access key is at the moment.
func (r *Resolver) AccessKey() generated.AccessKeyResolver { return &accessKeyResolver{r} }

// JoinToken returns the resolvers of a join token.
func (r *Resolver) JoinToken() generated.JoinTokenResolver { return &joinTokenResolver{r} }

type (
	queryResolver        struct{ *Resolver }
	mutationResolver     struct{ *Resolver }
	subscriptionResolver struct{ *Resolver }
	nodeResolver         struct{ *Resolver }
	instanceResolver     struct{ *Resolver }
	serviceResolver      struct{ *Resolver }
	registrationResolver struct{ *Resolver }
	accessKeyResolver    struct{ *Resolver }
	joinTokenResolver    struct{ *Resolver }
	volumeResolver       struct{ *Resolver }
)
